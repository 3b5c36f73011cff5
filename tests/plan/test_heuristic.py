import pytest

from gptoss_builder.plan.counts import count_parameters
from gptoss_builder.plan.heuristic import card_overhead_gib, estimate_gib, heuristic
from tests.plan.specs import lite


def estimate(overhead_gib, **changes):
    spec = lite(**changes)
    return estimate_gib(spec, count_parameters(spec.model).total, overhead_gib=overhead_gib)


@pytest.mark.parametrize(
    ("every", "gib"),
    [(0, 20.73), (2, 18.06), (3, 17.17), (4, 16.72), (6, 16.27), (12, 15.83), (1, 20.73)],
)
def test_it_gives_the_published_values_at_every_period(every, gib):
    assert estimate(2.0, training__checkpoint_every=every) == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize(("every", "gib"), [(0, 32.33), (3, 28.77)])
def test_it_gives_the_published_values_with_an_a100s_overhead(every, gib):
    spec = lite(training__checkpoint_every=every)
    values = heuristic(spec, count_parameters(spec.model).total)
    assert values.a100_overhead_gib == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize(("every", "gib"), [(0, 66.08), (3, 51.83)])
def test_it_gives_the_published_values_at_a_long_context(every, gib):
    long = estimate(13.6, training__context=16384, training__checkpoint_every=every)
    assert long == pytest.approx(gib, abs=0.005)


def test_a_smaller_micro_batch_at_period_three():
    assert estimate(2.0, training__micro_batch=2) == pytest.approx(11.40, abs=0.005)


@pytest.mark.parametrize(("total", "overhead"), [(4, 2.0), (80, 13.6), (141, 13.7), (40, 6.8)])
def test_the_cards_overhead_is_clamped(total, overhead):
    assert card_overhead_gib(total) == pytest.approx(overhead)


def test_a_spec_without_training_has_none():
    assert heuristic(lite(training=None), 1) is None
