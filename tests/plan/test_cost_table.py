from typing import get_args

import pytest

from gptoss_builder.errors import InputError
from gptoss_builder.plan.advice import period_lines
from gptoss_builder.plan.cost_table import PREDICTED_FROM, card_costs, cost_lines
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Cost
from gptoss_builder.targets import CARDS, lookup
from tests.plan.specs import lite


def plan(target="h200", **changes):
    return resolve(lite(**{"training__compile": True, **changes}), lookup(target))


def test_every_card_has_a_row_and_its_own_time():
    rows = {row.card: row for row in card_costs(plan("a100-80gb"))}
    assert rows.keys() == CARDS.keys() - {"cpu"}
    for name in ("h200", "a100-80gb", "l4"):
        assert rows[name].cost == plan(name).cost
    assert rows["h200"].cost.source == "measured"
    assert {row.cost.source for name, row in rows.items() if row.cost and name != "h200"} == {
        "derived"
    }


def test_a_card_that_cannot_train_it_says_why():
    rows = {row.card: row for row in card_costs(plan(training__micro_batch=64))}
    assert rows["t4"].cost is None
    assert "bf16" in rows["t4"].problem
    assert rows["rtx4090"].problem.startswith("does not fit: needs")
    assert rows["h200"].problem == ""


def test_a_card_whose_shared_memory_the_specs_own_kernel_overflows_says_so():
    kernel = {"block_t": 128, "block_k": 64, "block_n": 128, "num_warps": 8, "num_stages": 4}
    own = plan(kernel=kernel, model__moe__dispatch="triton_grouped")
    rows = {row.card: row for row in card_costs(own)}
    assert rows["h200"].cost is not None
    assert rows["l4"].cost is None
    assert "bytes of shared memory are needed" in rows["l4"].problem


def test_the_table_prints_every_assumption():
    one = plan()
    text = cost_lines(one, price_per_hour=2.0)
    for item in one.cost.items:
        assert item.name in text
        assert item.evidence in text
    row = next(line for line in text.splitlines() if line.startswith("h200 ")).split()
    assert float(row[1].replace(",", "")) == pytest.approx(one.cost.step_seconds * 1e3, abs=0.1)
    assert float(row[4].replace(",", "")) == pytest.approx(2 * one.cost.gpu_hours, abs=1)
    assert row[5:] == ["rates", "measured", "on", "it"]
    assert f"checkpointed: MFU {one.cost.model_flops_utilization:.1%}\n" in text


def test_without_training_there_is_no_table_and_of_no_known_speed_a_sentence():
    for lines in (cost_lines, period_lines):
        with pytest.raises(InputError, match="no training section"):
            lines(resolve(lite(training=None), lookup("h200")))
    text = cost_lines(plan("cpu", training__precision="fp32", model__moe__dispatch="stacked"))
    assert text.splitlines()[-1] == "cpu: nothing is assumed about its speed"


def test_every_source_that_a_cost_can_have_is_put_in_words():
    sources = get_args(Cost.model_fields["source"].annotation)
    assert set(PREDICTED_FROM) == set(sources)
    bound = cost_lines(plan(training__compile=False)).splitlines()
    assert any(line.startswith("h200 ") and "a bound" in line for line in bound)


def test_a_run_of_seconds_is_not_free():
    short = plan(training__steps=100)
    line = next(
        line
        for line in cost_lines(short, price_per_hour=2.0).splitlines()
        if line.startswith("h200 ")
    )
    hours, price = (float(cell) for cell in line.split()[3:5])
    assert hours == pytest.approx(short.cost.gpu_hours, rel=0.1)
    assert price == pytest.approx(2 * short.cost.gpu_hours, rel=0.1)
