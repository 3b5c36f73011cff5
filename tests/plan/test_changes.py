"""What is offered fits, by the whole plan's own estimate, and is the mildest of its kind."""

import pytest

from gptoss_builder.plan import changes as changes_module
from gptoss_builder.plan.changes import serving_changes, training_changes
from gptoss_builder.plan.fit import room
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import CARDS, lookup
from tests.plan.specs import lite

BIG = {"training__micro_batch": 32, "training__checkpoint_every": 0, "model__moe__backward": "save"}


def plan_of(target="a100-40gb", **changes):
    return resolve(lite(**(BIG | changes)), lookup(target))


def changed_plan(change, target="a100-40gb", **changes):
    settings = {field.replace(".", "__"): value for field, value in change.settings}
    target = settings.pop("target__gpu", target)
    return plan_of(target, **(changes | settings))


def fields(changes):
    return [[field for field, _ in change.settings] for change in changes]


def offered(plan, field):
    """The value that is offered for a field in a change that begins with it."""
    return next(c for c in training_changes(plan, room(plan)) if c.settings[0][0] == field)


def value(change):
    return change.settings[0][1]


def test_every_change_offered_fits_and_says_what_it_needs():
    plan = plan_of()
    available = room(plan)
    assert plan.memory.training.total_bytes > available
    changes = training_changes(plan, available)
    assert fields(changes) == [
        ["training.micro_batch", "training.accumulate"],
        ["model.moe.backward"],
        ["training.checkpoint_every"],
        ["training.context"],
        ["target.gpu"],
    ]
    for change in changes:
        other = changed_plan(change)
        assert other.memory.training.total_bytes == change.total_bytes <= room(other)


def test_a_smaller_micro_batch_leaves_the_tokens_of_a_step_and_is_the_largest_that_does():
    plan = plan_of(training__micro_batch=30, training__accumulate=5)
    settings = dict(offered(plan, "training.micro_batch").settings)
    batch = settings["training.micro_batch"]
    assert batch * settings["training.accumulate"] == 150
    larger = next(size for size in range(batch + 1, 31) if 150 % size == 0)
    other = plan_of(training__micro_batch=larger, training__accumulate=150 // larger)
    assert other.memory.training.total_bytes > room(plan)


def test_one_more_token_of_context_would_not_fit():
    plan = plan_of()
    longest = value(offered(plan, "training.context"))
    one_more = plan_of(training__context=longest + 1)
    assert one_more.memory.training.total_bytes > room(plan)


@pytest.mark.parametrize(("chunk", "offered"), [(999, False), (1000, False), (4095, True)])
def test_a_loss_chunk_is_offered_down_to_where_its_products_are_small(chunk, offered, monkeypatch):
    monkeypatch.setattr(changes_module, "SHORTEST_CHUNK", 4000)
    big = {
        "training__micro_batch": 8,
        "training__loss_chunk": 2**15,
        "training__checkpoint_every": 1,
    }
    plan = plan_of("h200", **big)
    smaller = plan_of("h200", **big | {"training__loss_chunk": chunk})
    changes = training_changes(plan, smaller.memory.training.total_bytes)
    assert (["training.loss_chunk"] in fields(changes)) == offered


def test_a_period_and_a_micro_batch_together_where_neither_is_enough():
    plan = plan_of(training__micro_batch=64, training__context=16384)
    alone = plan_of(training__micro_batch=1, training__context=16384)
    least = changed_of_all(plan)
    available = (alone.memory.training.total_bytes + least) // 2
    first = training_changes(plan, available)[0]
    assert fields([first]) == [
        ["training.checkpoint_every", "training.micro_batch", "training.accumulate"]
    ]
    other = changed_plan(first, training__context=16384)
    assert other.memory.training.total_bytes == first.total_bytes <= available


def changed_of_all(plan):
    least = plan_of(
        training__micro_batch=1,
        training__accumulate=2,
        training__checkpoint_every=1,
        training__context=plan.spec.training.context,
    )
    return least.memory.training.total_bytes


def test_a_context_with_everything_else_at_its_least_comes_last():
    plan = plan_of(training__micro_batch=64, training__context=16384)
    available = changed_of_all(plan) - 2**20
    changes = training_changes(plan, available)
    assert fields(changes[:1]) == [
        [
            "training.context",
            "training.micro_batch",
            "training.accumulate",
            "training.checkpoint_every",
        ]
    ]
    assert changed_plan(changes[0]).memory.training.total_bytes == changes[0].total_bytes


def serving_plan(**changes):
    return resolve(lite(training=None, **changes), lookup("rtx4090"))


@pytest.mark.parametrize(
    ("batch", "context", "expected"),
    [
        (400, 131072, ["inference.batch"]),
        (1, 2**22, ["inference.context"]),
        (16, 2**22, ["inference.context", "inference.batch"]),
    ],
)
def test_serving_is_offered_the_largest_batch_or_context_that_fits(batch, context, expected):
    plan = serving_plan(inference__batch=batch, inference__context=context)
    change = serving_changes(plan, room(plan))[0]
    assert fields([change]) == [expected]
    settings = {field.replace(".", "__"): value for field, value in change.settings}
    asked = {"inference__batch": batch, "inference__context": context} | settings
    other = serving_plan(**asked)
    assert other.memory.inference.total_bytes == change.total_bytes <= room(plan)
    first = next(iter(settings))
    more = serving_plan(**(asked | {first: settings[first] + 1}))
    assert more.memory.inference.total_bytes > room(plan)


def test_the_period_offered_is_the_longest_that_fits():
    plan = plan_of(training__micro_batch=24)
    change = offered(plan, "training.checkpoint_every")
    for every in range(value(change) + 1, 13):
        other = plan_of(training__micro_batch=24, training__checkpoint_every=every)
        assert other.memory.training.total_bytes > room(plan)


def test_the_card_offered_is_the_smallest_that_fits():
    plan = plan_of()
    card = value(offered(plan, "target.gpu"))
    margin = 2 * 2**30
    for other in CARDS.values():
        if other.arch not in ("cpu", "sm75") and other.memory_bytes < CARDS[card].memory_bytes:
            total = plan_of(other.name).memory.training.total_bytes
            assert total + margin > other.memory_bytes


def test_a_context_below_an_eighth_is_offered_only_if_nothing_else_is():
    tight = {"training__micro_batch": 1, "training__checkpoint_every": 1}
    plan = plan_of("gtx1650", **tight, training__precision="fp32", training__context=32768)
    shortest = plan_of("gtx1650", **tight, training__precision="fp32", training__context=2048)
    available = shortest.memory.training.total_bytes
    changes = training_changes(plan, available)
    assert ["training.context"] not in fields(changes)
    assert fields(changes) == [["target.gpu"]]
    roomy = plan.model_copy(update={"target": lookup("b300")})
    (change,) = training_changes(roomy, available)
    assert fields([change]) == [["training.context"]]
    assert 2048 <= value(change) < 32768 / 8
    eighth = plan_of("gtx1650", **tight, training__precision="fp32", training__context=4096)
    kept = training_changes(plan, eighth.memory.training.total_bytes)
    assert ["training.context"] in fields(kept)


def test_no_card_is_offered_where_the_own_is_large_enough_and_others_use_it():
    plan = plan_of("h200", training__micro_batch=8)
    needed = plan.memory.training.total_bytes
    assert needed < room(plan)
    changes = fields(training_changes(plan, int(0.9 * needed)))
    assert ["training.micro_batch", "training.accumulate"] in changes
    assert ["target.gpu"] not in changes


def test_nothing_is_offered_where_nothing_fits():
    plan = plan_of(model__layers=512, model__d_model=4096)
    assert 16 * plan.parameters.total > max(card.memory_bytes for card in CARDS.values())
    assert training_changes(plan, room(plan)) == ()


def test_without_training_or_inference_there_is_nothing_to_offer():
    assert training_changes(resolve(lite(training=None), lookup("h200")), 2**40) == ()
    assert serving_changes(resolve(lite(inference=None), lookup("h200")), 2**40) == ()
