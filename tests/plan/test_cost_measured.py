"""The cost of a step held to what was measured on an H200."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.step_rows import parse_row, plan_of
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import lookup
from tests.plan.specs import lite

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs" / "benchmarks" / "2026-11-30-h200-train-step.json"


def recorded_rows():
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if not row["alternative"] and "ms" in row]


def test_there_is_a_record():
    assert len(recorded_rows()) >= 2


@pytest.mark.parametrize("row", recorded_rows(), ids=lambda row: row["row"])
def test_a_step_takes_what_was_timed(row):
    plan = plan_of(parse_row(row["row"]), target="h200")
    assert plan.cost.source == "measured"
    assert plan.cost.step_seconds * 1e3 == pytest.approx(row["ms"], rel=0.15)


def test_the_page_has_every_row_with_what_the_plan_says_today():
    written = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs" / "cost.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"\| \S+:\S+ \|", line)
    ]
    rows = []
    for row in recorded_rows():
        today = plan_of(parse_row(row["row"]), target="h200").cost.step_seconds * 1e3
        then, measured = row["predicted_ms"], row["ms"]
        rows.append([row["row"], *(_cells(then, measured)), *_cells(today, measured)[::2]])
    assert written == rows


def _cells(predicted, measured):
    off = f"{predicted / measured - 1:+.1%}".replace("-", "−")
    return [f"{predicted:.1f}", f"{measured:.1f}", off]


# A sketch of the same model, before any part of this one was fitted; no efficiency comes from it.
@pytest.mark.parametrize(
    ("changes", "milliseconds"),
    [
        ({"backward": "save", "dispatch": "grouped_mm"}, 143),
        ({"backward": "recompute", "dispatch": "triton_grouped", "every": 3}, 166),
    ],
)
def test_a_step_of_the_sketch_takes_about_what_was_timed(changes, milliseconds):
    row = parse_row(f"lite:{changes.get('every', 0)}:{changes['backward']}")
    plan = plan_of(row, target="h200", dispatch=changes["dispatch"])
    assert plan.cost.step_seconds * 1e3 == pytest.approx(milliseconds, rel=0.15)


def profiles():
    return [row for row in recorded_rows() if "profile" in row]


@pytest.mark.parametrize("row", profiles(), ids=lambda row: row["row"])
def test_parts_take_what_the_profile_of_a_step_says(row):
    predicted = {
        item.name: item.seconds * 1e3
        for item in plan_of(parse_row(row["row"]), target="h200").cost.items
    }
    measured = {part["name"]: part["ms"] for part in row["profile"]["components"]}
    assert measured.keys() - predicted.keys() <= {"rest"}
    # the kernel's own time holds what it costs to keep gate and up
    kept = predicted.pop("experts' gate and up, kept", 0.0)
    predicted["experts' up-projection"] += kept
    # rates are those of the lite shape; narrow experts reach less
    slack = 0.1 if row["shape"] == "lite" else 0.25
    for name, milliseconds in measured.items():
        if milliseconds > 2:
            assert predicted[name] == pytest.approx(milliseconds, rel=slack), name


OF_A_LAYER = (
    "experts' up-projection",
    "experts' other products",
    "experts' activation",
    "experts' gate and up, kept",
    "experts' gathers and sums",
    "router and sort",
)


# MoE layers alone, router included, 32,768 tokens, as CUDA graphs; the loop's by calls.
@pytest.mark.parametrize(
    ("sizes", "dispatch", "backward", "milliseconds"),
    [
        ((768, 1536, 8, 2), "triton_grouped", "recompute", 3.641),
        ((768, 1536, 8, 2), "triton_grouped", "save", 3.134),
        ((768, 1536, 8, 2), "grouped_mm", "recompute", 4.107),
        ((768, 1536, 8, 2), "grouped_mm", "save", 3.506),
        ((768, 1536, 8, 2), "stacked", "recompute", 7.639),
        ((768, 1536, 8, 2), "stacked", "save", 7.138),
        ((2048, 768, 128, 8), "triton_grouped", "recompute", 19.89),
        ((2048, 768, 128, 8), "triton_grouped", "save", 15.51),
    ],
)
def test_a_layer_takes_what_was_timed_also_where_experts_are_fine(
    sizes, dispatch, backward, milliseconds
):
    d_model, d_ff, experts, top_k = sizes
    spec = lite(
        model__d_model=d_model,
        model__moe={
            "experts": experts,
            "top_k": top_k,
            "shared_experts": 0,
            "d_ff": d_ff,
            "dispatch": dispatch,
            "backward": backward,
        },
        training__accumulate=1,
        training__checkpoint_every=0,
        training__compile=True,
    )
    cost = resolve(spec, lookup("h200")).cost
    seconds = sum(item.seconds for item in cost.items if item.name in OF_A_LAYER)
    assert seconds * 1e3 / spec.model.layers == pytest.approx(milliseconds, rel=0.15)
