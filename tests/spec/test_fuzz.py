"""Damaged files: never a traceback, never slow, never large."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gptoss_builder.findings import Position
from gptoss_builder.spec.load import read_document
from gptoss_builder.spec.problems import PROBLEMS
from gptoss_builder.spec.text_file import decode
from gptoss_builder.spec.yaml_errors import lines_of
from gptoss_builder.spec.yaml_text import parse
from tests.spec.mutations import mutated

MOST_SECONDS = 1.0
MOST_BYTES = 500 * 2**20


def check(text: bytes) -> float:
    """Read one damaged spec, check what must hold for any input, and give the seconds taken."""
    start = time.process_time()
    document = read_document("s.yaml", text=text)
    seconds = time.process_time() - start
    assert (document.spec is None) == bool(document.findings)
    assert len(document.findings) <= 101
    if document.data is not None:
        assert document.partial is not None
        assert document.spec in (None, document.partial)
    lines = lines_of(document.text)
    for finding in document.findings:
        assert finding.code in PROBLEMS
        assert str(finding).isprintable()
        assert finding.fix
        if finding.position is not None and document.text:
            assert isinstance(finding.position, Position)
            assert 1 <= finding.position.line <= len(lines)
            line = lines[finding.position.line - 1]
            assert 1 <= finding.position.column <= len(line) + 1
    return seconds


def test_damaged_specs_give_findings() -> None:
    slowest = max(check(text) for text in mutated(400, seed=1))
    assert slowest < MOST_SECONDS


def test_the_pure_python_parser_never_raises_either() -> None:
    for damaged in mutated(60, seed=2):
        text, fault = decode(damaged)
        parsed = parse(text, yaml.SafeLoader)
        assert fault or parsed.complete or parsed.faults


CHILD = """
from tests.resident import peak_bytes
from tests.spec.test_fuzz import MOST_BYTES, check
from tests.spec.mutations import mutated

slowest = max(check(text) for text in mutated(10_000, seed=20))
print(slowest, peak_bytes())
"""


@pytest.mark.slow
def test_ten_thousand_damaged_specs_stay_quick_and_small() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    slowest, resident = map(float, run.stdout.split())
    assert slowest < MOST_SECONDS
    assert resident < MOST_BYTES
