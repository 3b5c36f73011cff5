"""Each hard rule, broken on purpose in a copy of our own source, is caught.

What a source rule can see is edited as a syntax tree, so that these tests follow the source;
what only shows when it runs is edited in a copy of the packages and probed in a child.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checkers.registry import HARD_RULES
from checkers.run import check_python, check_source

ROOT = Path(__file__).parents[2]
RULES = Path(__file__).parent / "rules"
PACKAGES = ("gptoss_builder", "checkers")
OURS = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_our_own_source_passes(path):
    assert [str(finding) for finding in check_python(str(path))] == []


def codes(place: str, text: str) -> set[str]:
    return {finding.code for finding in check_source(place, text, Path("/copy", place))}


def source(place: str) -> str:
    return (ROOT / place).read_text(encoding="utf-8")


def tree(place: str, edit: Callable[[ast.AST], ast.AST | None]) -> str:
    """The source with every node replaced by what `edit` gives; it must change something."""

    class Editor(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST | None:
            return self.generic_visit(edited) if (edited := edit(node)) is not None else None

    before = ast.parse(source(place))
    after = ast.unparse(ast.fix_missing_locations(Editor().visit(ast.parse(source(place)))))
    assert after != ast.unparse(before), f"nothing in {place} was edited"
    return after


def statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == name
        for part in ast.walk(node)
    )


def raises(node: ast.AST, error: str) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None and calls(node.exc, error)


PLAIN = [
    path.relative_to(ROOT).as_posix()
    for path in OURS
    if path.parts[-2] in ("model", "train", "kernels")
    and path.name not in ("w1w3_triton.py", "compile.py", "__init__.py")
]


@pytest.mark.parametrize("place", PLAIN)
def test_triton_in_any_other_file_is_caught(place):
    kernel = "\n\nimport triton\n\n\n@triton.jit\ndef kernel(x_ptr):\n    pass\n"
    hidden = "\n\nimport importlib\n\ntl = importlib.import_module('triton.language')\n"
    assert {"TR001", "TR003"} <= codes(place, source(place) + kernel)
    assert "TR002" in codes(place, source(place) + hidden)


def test_second_kernel_in_the_kernel_file_is_caught():
    place = "gptoss_builder/kernels/w1w3_triton.py"
    kernel = "\n\n@triton.jit\ndef attention_kernel(q_ptr):\n    pass\n"
    assert codes(place, source(place) + kernel) == {"TR005"}


def test_raised_cap_is_caught():
    place = "gptoss_builder/spec/schema.py"
    assert codes(place, source(place).replace("HARD_CAP = 8192", "HARD_CAP = 16384")) == {"HC101"}


def test_missing_triton_that_is_swallowed_is_caught():
    homes = [place for place in PLAIN if "raise MissingTritonError" in source(place)]
    assert homes

    def edit(node: ast.AST) -> ast.AST:
        return statement("return None") if raises(node, "MissingTritonError") else node

    for place in homes:
        assert codes(place, tree(place, edit)) == {"NF001"}


def test_second_choice_for_the_op_is_caught():
    place = "gptoss_builder/model/moe.py"
    appended = (
        "\n\ndef or_else(x, w13, offsets):\n    try:\n        return w1w3(x, w13, offsets)\n"
        "    except KernelError:\n        return w1w3_reference(x, w13, offsets, None)\n"
    )
    assert codes(place, source(place) + appended) == {"NF001"}


def test_failed_launch_that_goes_on_is_caught():
    place = "gptoss_builder/kernels/w1w3_triton.py"

    def edit(node: ast.AST) -> ast.AST:
        return statement("return None") if raises(node, "KernelError") else node

    assert "NF001" in codes(place, tree(place, edit))


def test_flag_that_routes_elsewhere_is_caught():
    place = "gptoss_builder/model/moe.py"
    routed = "\n\nup = 'triton' if HAS_TRITON else 'loop'\n"
    assert codes(place, source(place) + routed) == {"NF002"}


def test_training_without_the_memory_guard_is_caught():
    place = "gptoss_builder/train/loop.py"

    def edit(node: ast.AST) -> ast.AST:
        dropped = isinstance(node, ast.Expr) and calls(node, "require_memory")
        return ast.Pass() if dropped else node

    assert codes(place, tree(place, edit)) == {"VR101"}


def test_memory_guard_that_only_warns_is_caught():
    place = "gptoss_builder/train/loop.py"
    warned = source(place) + (
        "\n\ndef careless(plan, device):\n    try:\n        require_memory(plan, device)\n"
        "    except DeviceError as error:\n        print(error)\n"
    )
    assert codes(place, warned) == {"VR101"}


def test_memory_guard_that_refuses_nothing_is_caught():
    place = "gptoss_builder/train/device.py"

    def edit(node: ast.AST) -> ast.AST:
        return statement("print('too little')") if raises(node, "DeviceError") else node

    assert codes(place, tree(place, edit)) == {"VR101"}


PROBE = """
import sys
from pathlib import Path
from gptoss_builder.errors import CapError
from gptoss_builder.pipeline import check
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.spec.load import load_spec
from gptoss_builder.targets import lookup

examples = Path(sys.argv[1])
for code in ("HC001", "VR001", "VR002", "AT002", "AT005", "AT007"):
    found = check(examples / code.lower() / "bad.yaml").errors
    assert code in {finding.code for finding in found}, f"{code} was not found"
spec = load_spec(examples / "mo001" / "good.yaml")
assert spec.layer_kinds() == ("window", "full", "window", "full"), spec.layer_kinds()
wide = spec.model_copy(update={"model": spec.model.model_copy(update={"d_model": 8200})})
try:
    resolve(wide, lookup("cpu"))
except CapError:
    pass
else:
    raise AssertionError("resolve took a width above the cap")
"""

MUTATIONS = {
    "none": (),
    "cap": (("gptoss_builder/spec/schema.py", "HARD_CAP = 8192", "HARD_CAP = 9000"),),
    "cap at resolve": (("gptoss_builder/plan/resolve.py", "raise CapError(", "print("),),
    "training fits": (("checkers/registry.py", "    vr001.rule,\n", ""),),
    "serving fits": (("checkers/spec_rules/vr002.py", "<= available:", ">= 0:"),),
    "alternation": (("gptoss_builder/spec/schema.py", "pattern[layer %", "pattern[(layer + 1) %"),),
    "reduction": (("checkers/spec_rules/at007.py", "REQUIRED = 1.8", "REQUIRED = 1.0"),),
    "errors are errors": (
        ("checkers/spec_rules/at002.py", "    reads=(", '    severity="advice",\n    reads=('),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_copy_fails_the_probe(name, tmp_path):
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    for place, old, new in MUTATIONS[name]:
        path = tmp_path / place
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{place} no longer has {old!r}: edit this test"
        path.write_text(text.replace(old, new), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(RULES)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (name == "none"), done.stderr


def test_every_hard_rule_is_broken_here():
    tested = Path(__file__).read_text(encoding="utf-8")
    for name, rules in HARD_RULES.items():
        assert any(code in tested for code in rules), name
