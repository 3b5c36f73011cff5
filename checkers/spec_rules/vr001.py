from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.what_if import halved, larger_card, training_bytes
from checkers.wording import GIB, either, gib
from gptoss_builder.plan.advice import breakdown, single_changes
from gptoss_builder.plan.fit import too_short
from gptoss_builder.plan.schema import Plan

SHORTEST_CHUNK = 512
"""Tokens of a loss chunk below which another change is proposed."""


@partial(
    PlanRule,
    code="VR001",
    title="training fits the card",
    why="A run that does not fit dies in its first step, or worse, in a later and larger one. "
    "The estimated reserved peak, the CUDA context and the margin must be within the card's "
    "usable memory.",
    bad="training: {context: 131072, micro_batch: 8}\ntarget: {gpu: gtx1650}",
    good="training: {context: 128, micro_batch: 1}\ntarget: {gpu: gtx1650}",
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or plan.target.arch == "cpu":
        return
    margin = int(plan.spec.target.margin_gib * GIB)
    usable = plan.target.memory_bytes
    if estimate.total_bytes + margin <= usable:
        return
    alone = single_changes(plan, usable - margin)
    yield Problem(
        "training.micro_batch" if "micro_batch" in training.model_fields_set else "training",
        f"training needs {gib(estimate.total_bytes)} at its peak ({estimate.peak}) and "
        f"{gib(margin)} of margin, but {plan.target.name} has {gib(usable)}; at the peak: "
        f"{breakdown(estimate)}" + (f"; each of these alone fits: {alone}" if alone else ""),
        _way_out(plan, usable - margin),
    )


def _way_out(plan: Plan, room: int) -> str:
    """The smallest change that fits, tried from the cheapest on."""
    training = plan.spec.training
    if training is None:
        return ""

    def fits(**changes: int) -> bool:
        return training_bytes(plan, **changes) <= room

    def batch_fits(period: int, batch: int) -> bool:
        return fits(checkpoint_every=period, micro_batch=batch)

    # Shorter chunks of the loss cost nothing that a step shows, until they are very short.
    chunk = halved(training.loss_chunk, lambda chunk: fits(loss_chunk=chunk))
    if chunk is not None and chunk >= SHORTEST_CHUNK:
        return f"set training.loss_chunk to {chunk}; that fits"
    for period in dict.fromkeys((training.checkpoint_every, 3, 2, 1)):
        batch = halved(training.micro_batch, partial(batch_fits, period))
        if batch is None:
            continue
        words = []
        if period != training.checkpoint_every:
            words.append(f"training.checkpoint_every to {period}")
        if batch != training.micro_batch:
            more = training.accumulate * -(-training.micro_batch // batch)
            words.append(f"training.micro_batch to {batch}")
            words.append(f"training.accumulate to {more}, for the same tokens a step")
        return f"set {' and '.join(words)}; that fits"
    least = {"micro_batch": 1, "checkpoint_every": 1}
    context = halved(training.context, lambda context: fits(context=context, **least))
    ways = ["narrow the model"]
    card = larger_card(plan, lambda card: training_bytes(plan, card))
    if context is not None and (card is None or not too_short(context, training)):
        with_these = "with micro_batch 1 and checkpoint_every 1"
        ways.insert(
            0, f"shorten training.context to {context} (now {training.context}) {with_these}"
        )
    if card is not None:
        ways.append(f"take a larger card, such as {card}")
    return f"a micro_batch of 1 and checkpointing are not enough: {either(ways)}"
