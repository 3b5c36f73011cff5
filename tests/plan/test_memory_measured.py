"""Today's closed form against what an H200 measured, and the documents made of both.

The published errors stay true when the closed form changes: a change of the model that needs
another amount of memory needs another measurement too.
"""

from __future__ import annotations

import statistics

import pytest

from docs.pictures import memory
from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.advice import period_lines

MIB = 2**20
FOUND = memory.rows()


def test_the_record_has_every_period_dispatch_and_mode():
    names = {row.name for row in FOUND}
    assert {f"period {n}" for n in (0, 2, 3, 4, 6, 12)} <= names
    assert {"64 experts, top 8, period 1", "vocabulary 201,088", "1.2B, period 3"} <= names
    assert {"eager, stacked", "grouped_mm", "save", "untied", "eager", "accumulate 4"} <= names
    assert len(FOUND) >= 16


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row.name)
def test_the_closed_form_is_as_near_the_measurement_as_promised(row):
    allocated, reserved = row.errors
    assert abs(row.allocated_planned - row.allocated) <= max(0.03 * row.allocated, 64 * MIB)
    assert allocated > -0.015
    # what must fit is never below what was needed
    assert 0 <= reserved < 0.06


def test_the_readme_and_the_page_quote_these_errors():
    page = memory.RECORD.with_suffix(".md").read_text(encoding="utf-8")
    assert page == memory.page(FOUND), "run python -m docs.pictures.memory"
    allocated, reserved = (
        max(map(abs, part)) for part in zip(*(r.errors for r in FOUND), strict=True)
    )
    readme = (memory.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{allocated:.2%} in what is allocated" in readme
    assert f"{reserved:.1%} in what is reserved" in readme
    assert statistics.median(abs(row.errors[0]) for row in FOUND) < 0.001


def test_the_picture_is_of_these_figures():
    assert memory.PICTURE.read_text(encoding="utf-8") == memory.picture(FOUND)


def test_the_table_over_periods_is_todays():
    page = (memory.ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    plan = make_plan(memory.ROOT / "specs" / "gpt_oss_lite.yaml", target="h200")
    rows = [line.split()[:5] for line in period_lines(plan).splitlines()[2:-2]]
    cells = {(every, backward): " | ".join(rest) for every, backward, *rest in rows}
    for every in ("0", "12", "6", "4", "3", "2", "1"):
        assert f"| {every} | {cells[every, 'save']} | {cells[every, 'recompute']} |\n" in page
