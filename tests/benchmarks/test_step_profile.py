"""The profile by component, on kernels recorded in a step of gpt_oss_lite on an H200.

`lite_launches.json` holds those of 0.01 ms a step and more, launched alike and summed.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.step_components import Launch, component
from benchmarks.step_profile import busy_ms, launches, summary, text
from benchmarks.step_rows import parse_row, plan_of


@pytest.fixture(scope="module")
def plan():
    return plan_of(parse_row("lite:0"), target="h200")


@pytest.fixture(scope="module")
def recorded():
    rows = json.loads(Path(__file__).with_name("lite_launches.json").read_text(encoding="utf-8"))
    return [
        Launch(tuple(chain), tuple(map(tuple, shapes)), tuple(values), *rest)
        for chain, shapes, values, *rest in rows
    ]


def by_component(rows, plan):
    sums = defaultdict(float)
    for row in rows:
        sums[component(row, plan)] += row.ms
    return sums


def test_nothing_recorded_is_left_over(recorded, plan):
    sums = by_component(recorded, plan)
    assert "rest" not in sums
    assert sum(sums.values()) == pytest.approx(sum(row.ms for row in recorded))


# Sums of the record's own rows, added up by kernel name and not by what launched them.
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("experts' up-projection", "w1w3_kernel"),
        ("experts' activation", "w1w3_backward_kernel"),
        (
            "cudnn attention, full layers, forward",
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop",
        ),
        ("flash attention, window layers, forward", "void pytorch_flash::flash_fwd_kernel"),
        ("loss, elementwise", "triton_per_fused__to_copy_amax_clamp_exp_sub_sum_v"),
    ],
)
def test_a_component_holds_its_kernels(recorded, plan, name, kernels):
    of_kernel = [row for row in recorded if row.kernel.startswith(kernels[:50])]
    assert of_kernel
    assert {component(row, plan) for row in of_kernel} == {name}


def test_products_come_to_what_was_recorded(recorded, plan):
    sums = by_component(recorded, plan)
    assert sums["vocabulary products"] == pytest.approx(9.122 + 8.507 + 8.233, abs=0.01)
    other = 6.017 + 5.650 + 3.494 + 3.445 + 2.887
    assert sums["experts' other products"] == pytest.approx(other, abs=0.1)
    # of the same widths as the shared experts' in this model: told apart by the caller
    projections = 1.452 + 0.733 + 1.400 + 0.791 + 1.412 + 0.826
    assert sums["projections"] == pytest.approx(projections, abs=0.03)


def test_grouped_products_are_told_apart_by_their_weight(plan):
    def launch(weight):
        chain = ("gptoss::experts_backward", "aten::_grouped_mm")
        return Launch(chain, ((65536, 768), weight), (), "cutlass", 1.0, 12)

    assert component(launch((8, 768, 3072)), plan) == "experts' up-projection"
    assert component(launch((8, 3072, 768)), plan) == "experts' other products"


def test_attention_that_is_flash_everywhere_is_told_apart_by_the_window():
    plan = plan_of(parse_row("lite:0"), target="a100-80gb")
    assert plan.execution.full_attention == plan.execution.window_attention == "flash"

    def launch(values):
        chain = ("CompiledFunction", "aten::_flash_attention_forward")
        return Launch(chain, (), values, "flash_fwd_kernel", 1.0, 6)

    assert "window" in component(launch(("", "4096", "127", "0")), plan)
    assert "full" in component(launch(("", "4096", "", "")), plan)


def test_what_nobody_knows_is_rest_and_is_named(plan):
    row = Launch(("mine::op",), ((3, 5),), (), "my_kernel", 2.5, 1)
    found = summary([row], plan, 2.5, 10.0)
    assert [part["name"] for part in found["components"]] == ["rest"]
    assert "my_kernel" in text(found)
    assert found["idle"] == pytest.approx(0.75)


def event(category, name, start, duration, ident, **args):
    return {
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "tid": 7,
        "args": {"External id": ident, **args},
    }


def test_a_kernel_belongs_to_the_innermost_operator_and_its_callers():
    trace = [
        event("cpu_op", "outer", 0, 100, 1),
        event("cpu_op", "inner", 10, 20, 2, **{"Input Dims": [[4, 5], []]}),
        event("cpu_op", "after", 40, 20, 3),
        event("kernel", "k", 200, 50, 2),
        event("kernel", "k", 300, 30, 2),
        event("kernel", "k", 310, 40, 3),
        event("gpu_user_annotation", "span", 0, 900, 2),  # no work
    ]
    rows = {row.op: row for row in launches(trace, steps=2)}
    assert rows["inner"].chain == ("outer", "inner")
    assert rows["after"].chain == ("outer", "after")
    assert rows["inner"].shapes == ((4, 5), ())
    assert rows["inner"].ms == pytest.approx(0.040)
    assert rows["inner"].count == 1
    assert busy_ms(trace) == pytest.approx(0.100)  # the last two run side by side for 20 µs
