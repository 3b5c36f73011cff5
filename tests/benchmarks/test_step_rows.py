import argparse

import pytest

from benchmarks.step_rows import DEFAULT_ROWS, SHAPES, Row, parse_row, plain, plan_of
from gptoss_builder.errors import SpecError


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("lite", Row("lite", "lite")),
        ("fine:3", Row("fine:3", "fine", period=3)),
        ("2.4b:1:save", Row("2.4b:1:save", "2.4b", period=1, backward="save")),
        ("long:auto", Row("long:auto", "long", period=None)),
        ("hf", Row("hf", "lite", alternative="hf")),
        ("hf-bf16:fine", Row("hf-bf16:fine", "fine", alternative="hf-bf16")),
    ],
)
def test_a_row_is_read(text, row):
    assert parse_row(text) == row


@pytest.mark.parametrize(
    "text", ["", "light", "lite:", "lite:-1", "lite:x", "lite:0:sav", "lite:0:save:1", "hf:3"]
)
def test_what_is_no_row_is_refused_with_the_grammar(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"SHAPE\[:PERIOD\[:BACKWARD\]\]"):
        parse_row(text)


@pytest.mark.parametrize("name", sorted({*DEFAULT_ROWS, *SHAPES}))
def test_every_row_has_a_plan_on_the_card_and_a_plain_one(name):
    row = parse_row(name)
    plan = plan_of(row, target="h200")
    assert plan.spec.training.checkpoint_every == row.period
    assert plan.spec.training.accumulate == 1
    other = plain(plan, 512)
    assert other.parameters == plan.parameters
    assert other.execution.precision == "fp32"
    assert other.execution.up_products == "loop"
    assert other.execution.full_attention == "math"


def test_the_two_more_shapes_are_what_their_names_say():
    fine, large = (plan_of(parse_row(name), target="h200") for name in ("fine", "2.4b"))
    assert (fine.spec.model.moe.experts, fine.spec.model.moe.top_k) == (64, 8)
    assert 2.35e9 < large.parameters.total < 2.45e9


def test_advised_settings_come_from_the_plan():
    roomy = plan_of(parse_row("lite:auto"), target="h200")
    assert (roomy.spec.training.checkpoint_every, roomy.execution.backward) == (0, "save")
    with pytest.raises(SpecError):
        plan_of(parse_row("long:0:save"), target="rtx4090")
    tight = plan_of(parse_row("long:auto"), target="rtx4090")
    assert tight.memory.training.total_bytes <= tight.target.memory_bytes


def test_the_command_line_wins_over_the_shape():
    plan = plan_of(parse_row("lite:0"), target="h200", dispatch="grouped_mm", compiled=False)
    assert plan.execution.up_products == "grouped_mm"
    assert not plan.execution.compile
