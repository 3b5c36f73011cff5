"""How source is read: places that may differ, positions, text that is no Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.run import check_python, check_source
from gptoss_builder.errors import InputError
from gptoss_builder.findings import Position

JITTED = "import triton\n\n\n@triton.jit\ndef w1w3_kernel(x_ptr):\n    pass\n"


def codes(text: str, place: str) -> list[str]:
    return [finding.code for finding in check_source("x.py", text, Path("/any", place))]


def test_triton_may_be_used_in_the_two_sanctioned_files_only():
    assert codes(JITTED, "gptoss_builder/kernels/w1w3_triton.py") == []
    assert codes("import triton\n", "gptoss_builder/kernels/compile.py") == []
    for place in (
        "w1w3_triton.py",
        "kernels/w1w3_triton.py",
        "gptoss_builder/model/w1w3_triton.py",
        "gptoss_builder/kernels/products.py",
        "mine/kernels/w1w3_triton.py",
    ):
        assert set(codes(JITTED, place)) == {"TR001", "TR003"}, place


@pytest.mark.parametrize(
    "text",
    [
        "import triton as t\n",
        "import os, triton.language\n",
        "def f():\n    import triton\n",
        "try:\n    import triton\nexcept ImportError:\n    raise\n",
        "from triton import *\n",
        "import importlib as i\ni.import_module('triton')\n",
        "from importlib import import_module\nload = import_module\nload('triton')\n",
        "import importlib\nNAME = 'trit'\nimportlib.import_module(NAME + 'on')\n",
        "getattr(__import__('mine'), 'triton')\n",
        "import builtins\nbuiltins.exec('import triton')\n",
        "import builtins\nbuiltins.__import__('triton')\n",
        "__import__('%s' % 'triton')\n",
        "a = 'tri'\n__import__('{}{}'.format(a, 'ton'))\n",
        "import sys\nsys.modules.get('triton')\n",
        "from gptoss_builder.kernels import w1w3_triton as w\n@w.triton.jit\ndef k(x):\n    ...\n",
    ],
)
def test_triton_is_found_however_it_is_imported(text):
    assert any(code.startswith("TR") for code in codes(text, "mine/x.py"))


IMPORT = "from gptoss_builder.kernels.w1w3 import w1w3\n"


@pytest.mark.parametrize(
    "text",
    [
        "def up(x):\n    return w1w3(x)\ntry:\n    up(x)\nexcept RuntimeError:\n    pass\n",
        "def a(x):\n    return w1w3(x)\ndef b(x):\n    return a(x)\n"
        "try:\n    b(x)\nexcept (OSError, RuntimeError):\n    y = 0\n",
        "class M:\n    def up(self, x):\n        return w1w3(x)\n    def forward(self, x):\n"
        "        try:\n            return self.up(x)\n        except RuntimeError:\n"
        "            return 0\n",
        "class M:\n    def __init__(self):\n        self.up = w1w3\n    def forward(self, x):\n"
        "        try:\n            return self.up(x)\n        except RuntimeError:\n"
        "            return 0\n",
        "for _ in x:\n    try:\n        w1w3(x)\n    finally:\n        break\n",
        "for _ in x:\n    try:\n        w1w3(x)\n    finally:\n"
        "        if y:\n            continue\n",
        "from contextlib import ExitStack, suppress\nwith ExitStack() as stack:\n"
        "    stack.enter_context(suppress(RuntimeError))\n    w1w3(x)\n",
        "class Quiet:\n    def __enter__(self):\n        return self\n"
        "    def __exit__(self, *error):\n        return True\nwith Quiet():\n    w1w3(x)\n",
        "from contextlib import contextmanager\n@contextmanager\ndef quiet():\n    try:\n"
        "        yield\n    except RuntimeError:\n        pass\nwith quiet():\n    w1w3(x)\n",
    ],
)
def test_kernel_that_is_swallowed_by_a_detour_is_found(text):
    assert codes(IMPORT + text, "mine/x.py") == ["NF001"]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    w1w3(x)\nexcept KeyboardInterrupt:\n    print()\n",
        "try:\n    w1w3(x)\nfinally:\n    for a in b:\n        break\n",
        "try:\n    w1w3(x)\nfinally:\n    def late():\n        return 1\n",
        "from contextlib import suppress\nwith torch.no_grad():\n    with suppress(KeyError):\n"
        "        d.pop(x)\n    w1w3(x)\n",
        "def up(x):\n    return w1w3(x)\ntry:\n    other.up(x)\nexcept OSError:\n    pass\n",
    ],
)
def test_ordinary_code_near_the_kernel_is_left_alone(text):
    assert codes(IMPORT + text, "mine/x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "match HAS_TRITON:\n    case True:\n        w1w3(x)\n    case _:\n        g()\n",
        "f = {True: w1w3, False: b}[HAS_TRITON]\n",
        "f = (a, w1w3)[use_triton]\n",
        "from importlib.util import find_spec\nok = find_spec('triton') is not None\n"
        "if ok:\n    w1w3(x)\nelse:\n    g()\n",
        "ok = has_triton() and cuda\nf = w1w3 if ok else b\n",
        "def up(x):\n    return w1w3(x)\nf = up if useTriton else b\n",
        "def f(x):\n    if not HAS_TRITON:\n        return g(x)\n    return w1w3(x)\n",
        "def f(x):\n    if use_kernel:\n        return w1w3(x)\n    return g(x)\n",
        "def f(x):\n    return w1w3(x) if x.is_cuda else g(x)\n",
        "def f(x):\n    if not torch.cuda.is_available():\n        return g(x)\n"
        "    return w1w3(x)\n",
        "dispatch = 'triton_grouped' if has_triton() else 'stacked'\n",
        "if not TRITON_AVAILABLE:\n    change(spec, dispatch='stacked')\n",
    ],
)
def test_flag_routes_in_any_form(text):
    assert codes(IMPORT + text, "mine/x.py") == ["NF002"]


@pytest.mark.parametrize(
    "text",
    [
        "y = 5 if use_kernel_size else 3\n",
        "if use_kernel_bias:\n    y = w1w3(x) + b\n",
        "if not no_kernel_init:\n    init(conv.kernel)\n",
        "if kernel_ok:\n    convolve(x)\n",
        "if use_triton:\n    serve_with_nvidia_triton(model)\n",
        "if has_triton():\n    model = torch.compile(model)\n    print('triton')\n",
        "def f(x):\n    if has_triton():\n        return w1w3(x)\n    raise ImportError\n",
        "match has_triton():\n    case True:\n        w1w3(x)\n    case _:\n"
        "        raise ImportError\n",
        "def main():\n    if not torch.cuda.is_available():\n        return 1\n    w1w3(x)\n",
        "if torch.cuda.is_available():\n    w1w3(x)\n",
        "dispatch = 'triton_grouped' if torch.cuda.is_available() else 'stacked'\n",
        "y = w1w3(x) if plan.execution.up_products == 'triton' else loop(x)\n",
    ],
)
def test_names_that_only_contain_the_words_are_no_flags(text):
    assert codes(IMPORT + text, "mine/x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "class M:\n    def __init__(self):\n        self.w1w3 = Linear(2, 4)\n"
        "    def forward(self, x):\n        try:\n            return self.w1w3(x)\n"
        "        except RuntimeError:\n            return 0\n",
        "def w1w3(x):\n    return x\ntry:\n    w1w3(x)\nexcept RuntimeError:\n    pass\n",
        "from importlib.metadata import version\ntry:\n    found = version('triton')\n"
        "except Exception:\n    found = None\n",
        "from rockets import LaunchError\ntry:\n    launch()\nexcept LaunchError:\n    pass\n",
        "class KernelError(Exception):\n    pass\ntry:\n    boot()\nexcept KernelError:\n"
        "    pass\n",
        "asked = getattr(options, 'triton', None)\n",
        "from mine import settings\nasked = getattr(settings, 'triton')\n",
        "HARD_CAP = 100\nself.HARD_CAP = 5\n",
        "setattr(limits, 'HARD_CAP', 16384)\n",
        "from mine import limits\nlimits.HARD_CAP = 16384\n",
        "def require_memory():\n    pass\ntry:\n    require_memory()\nexcept OSError:\n    pass\n",
        "try:\n    self.pool.require_memory(8)\nexcept MemoryError:\n    pass\n",
    ],
)
def test_names_of_the_users_own_are_left_alone(text):
    assert codes(text, "mine/x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "from gptoss_builder.spec import schema\nschema.HARD_CAP = 16384\n",
        "import gptoss_builder.spec.schema\ngptoss_builder.spec.schema.HARD_CAP += 1\n",
        "import gptoss_builder.plan.resolve as r\nsetattr(r, 'HARD_CAP', 9000)\n",
        "from gptoss_builder.spec.schema import HARD_CAP\nHARD_CAP = 16384\n",
        "from gptoss_builder.kernels import w1w3\nmonkeypatch.setattr(w1w3, 'HARD_CAP', 9000)\n",
    ],
)
def test_the_projects_cap_is_not_moved_from_outside(text):
    assert codes(text, "mine/x.py") == ["HC101"]


def test_the_memory_guard_is_known_by_where_it_comes_from():
    text = "try:\n    guard(plan, device)\nexcept RuntimeError:\n    pass\n"
    ours = "from gptoss_builder.train.device import require_memory as guard\n"
    assert codes(ours + text, "mine/x.py") == ["VR101"]


def test_what_is_only_handed_a_flag_is_none():
    text = "options = Options(use_triton=use_triton)\nif options.verbose:\n    f()\n"
    assert codes(text, "mine/x.py") == []


def test_hot_path_rule_reads_the_hot_path_alone():
    text = "def f(x):\n    return x.item()\n"
    assert codes(text, "gptoss_builder/model/moe.py") == ["KL101"]
    assert codes(text, "gptoss_builder/kernels/deep/x.py") == ["KL101"]
    assert codes(text, "gptoss_builder/kernels/w1w3_reference.py") == []
    assert codes(text, "gptoss_builder/train/data.py") == []


def test_columns_count_characters_not_bytes():
    (finding,) = check_source("x.py", 'é = "ü"; import triton\n', Path("/any/x.py"))
    assert finding.position == Position(1, 10)
    assert finding.source == 'é = "ü"; import triton'


def test_lines_count_as_editors_count_them():
    text = 'a = "\x0c\u2028"\nimport triton\n'
    (finding,) = check_source("x.py", text, Path("/any/x.py"))
    assert finding.position == Position(2, 1)
    assert finding.source == "import triton"


@pytest.mark.parametrize(
    "content",
    [
        b"def broken(:\n",
        b"x = '\xff'\n",
        b"# coding: no-such-codec\n",
        b"x = 1\x00\n",
        b"\xff\xfei\x00",
        b"(" * 5000 + b")" * 5000,
    ],
    ids=["syntax", "bytes", "codec", "nul", "utf16", "nesting"],
)
def test_what_is_no_python_is_a_finding(tmp_path, content):
    path = tmp_path / "x.py"
    path.write_bytes(content)
    (finding,) = check_python(str(path))
    assert finding.code == "SP203"


def test_declared_encodings_and_line_ends_are_read(tmp_path):
    path = tmp_path / "x.py"
    path.write_bytes("# coding: latin-1\r\nå = 1\r\nimport triton\r\n".encode("latin-1"))
    (finding,) = check_python(str(path))
    assert (finding.position, finding.source) == (Position(3, 1), "import triton")


def test_unreadable_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        check_python(str(tmp_path / "none.py"))


def test_nothing_is_imported_or_run(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "x.py"
    path.write_text(f"open({str(marker)!r}, 'w')\nimport mine_that_is_not_there\n")
    assert check_python(str(path)) == []
    assert not marker.exists()
