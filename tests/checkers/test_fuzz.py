"""Damaged specs through every rule: never a traceback, never slow, never large."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkers.output import FORMATS, renderer
from checkers.registry import RULES
from checkers.report import Report
from gptoss_builder.pipeline import check
from tests.spec.mutations import mutated

MOST_SECONDS = 1.0
MOST_BYTES = 500 * 2**20


def judge(text: bytes) -> float:
    """Check one damaged spec, print it in every format, and give the seconds that took."""
    start = time.process_time()
    checked = check("s.yaml", text=text)
    seconds = time.process_time() - start
    assert all(finding.code in RULES for finding in checked.findings)
    assert (checked.plan is None) <= bool(checked.errors)
    report = Report(("s.yaml",), checked.findings, checked.suppressed)
    for name in FORMATS:
        assert renderer(name)(report).encode().endswith(b"\n") or not checked.findings
    return seconds


def test_damaged_specs_never_crash_the_checker():
    assert max(judge(text) for text in mutated(150, seed=3)) < MOST_SECONDS


CHILD = """
from tests.resident import peak_bytes
from tests.checkers.test_fuzz import judge
from tests.spec.mutations import mutated

print(max(judge(text) for text in mutated(10_000, seed=30)))
print(peak_bytes())
"""


@pytest.mark.slow
def test_ten_thousand_damaged_specs_stay_quick_and_small():
    run = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    slowest, most = map(float, run.stdout.split())
    assert slowest < MOST_SECONDS
    assert most < MOST_BYTES
