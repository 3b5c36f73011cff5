"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for folder in ("gptoss_builder", "checkers", "benchmarks", "docs")
    for file in (ROOT / folder).rglob("*.py")
    if "\n    >>> " in file.read_text(encoding="utf-8")
)


def test_there_are_examples():
    assert {"gptoss_builder.findings", "docs.pictures.chart"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_say(module, capsys):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed, capsys.readouterr().out
