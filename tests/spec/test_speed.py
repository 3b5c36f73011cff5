"""The loader starts and reads quickly, and drags in nothing heavy."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from tests.spec.examples import LEGAL, ROOT

CHILD = """
import sys
from pathlib import Path
from gptoss_builder.spec.load import read_document
for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    assert read_document(path).spec is not None
heavy = {"torch", "triton", "numpy", "jsonschema", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_two_hundred_specs_take_less_than_a_second_in_a_fresh_process(tmp_path: Path) -> None:
    for number in range(200):
        text = LEGAL.replace("name: example", f"name: example_{number}")
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    taken = []
    for _ in range(3):
        before = children_seconds()
        subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT, check=True)
        taken.append(children_seconds() - before)
    assert min(taken) < 1.0, taken


def children_seconds() -> float:
    """Processor seconds of finished children: other work on the machine does not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
