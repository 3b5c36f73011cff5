import pytest

from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import lookup
from tests.plan.specs import lite


def cost(target="h200", price_per_hour=None, **changes):
    one = {"training__accumulate": 1, "training__checkpoint_every": 0}
    return resolve(lite(**(one | changes)), lookup(target), price_per_hour=price_per_hour).cost


# Steps that were timed on the H200 and that no efficiency was fitted to.
@pytest.mark.parametrize(
    ("changes", "milliseconds"),
    [
        ({"model__moe__dispatch": "grouped_mm", "model__moe__backward": "save"}, 143),
        ({"model__moe__dispatch": "grouped_mm", "training__checkpoint_every": 3}, 166),
    ],
)
def test_a_step_on_the_h200_takes_what_was_timed(changes, milliseconds):
    assert cost(**changes).step_seconds * 1e3 == pytest.approx(milliseconds, rel=0.1)


def test_only_the_card_that_was_timed_is_called_measured():
    assert cost("h200").source == "measured"
    assert cost("a100-80gb").source == "derived"


def test_what_was_timed_nowhere_is_called_a_bound():
    assert cost("h200", training__precision="fp32").source == "bound"
    assert cost("h200", model__attention__backend="math").source == "bound"


def test_the_parts_add_up_to_the_step():
    estimate = cost()
    assert estimate.step_seconds == pytest.approx(sum(item.seconds for item in estimate.items))
    assert estimate.tokens_per_second == pytest.approx(8 * 4096 / estimate.step_seconds)
    assert estimate.gpu_hours == pytest.approx(61_000 * estimate.step_seconds / 3600)


def test_accumulation_repeats_all_but_the_optimizer():
    once, four = cost(), cost(training__accumulate=4)
    update = next(item.seconds for item in once.items if item.name == "optimizer")
    assert four.step_seconds == pytest.approx(4 * once.step_seconds - 3 * update)


def test_the_user_names_the_price():
    assert cost().price is None
    priced = cost(price_per_hour=2.5)
    assert priced.price == pytest.approx(2.5 * priced.gpu_hours)


def test_a_processor_and_a_spec_without_training_have_no_cost():
    assert cost("cpu", training__precision="fp32") is None
    assert resolve(lite(training=None), lookup("h200")).cost is None


def test_the_loop_is_slower_than_grouped_products_and_says_why():
    stacked, grouped = cost(), cost(model__moe__dispatch="grouped_mm")
    assert stacked.step_seconds > 1.1 * grouped.step_seconds
    loop = next(item for item in stacked.items if item.name == "experts' up-projection")
    assert "248.6 TFLOP/s" in loop.evidence
