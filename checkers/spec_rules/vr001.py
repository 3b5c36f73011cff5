from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.what_if import training_bytes
from checkers.wording import GIB, gib
from gptoss_builder.plan.schema import Plan


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
    yield Problem(
        "training.micro_batch" if "micro_batch" in training.model_fields_set else "training",
        f"training needs {gib(estimate.total_bytes)} at its peak ({estimate.peak}) and "
        f"{gib(margin)} of margin, but {plan.target.name} has {gib(usable)}",
        _way_out(plan, usable - margin),
    )


def _way_out(plan: Plan, room: int) -> str:
    """The smallest change that fits, tried from the cheapest on."""
    training = plan.spec.training
    if training is None:
        return ""
    for period in dict.fromkeys((training.checkpoint_every, 3, 2, 1)):
        batch = _largest_batch(plan, period, room)
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
    return (
        "a micro_batch of 1 and checkpointing do not help: shorten training.context (now "
        f"{training.context}), narrow the model, or take a larger card"
    )


def _largest_batch(plan: Plan, period: int, room: int) -> int | None:
    """The micro-batch, or its largest half, quarter, … that fits; None if one sequence does not."""
    training = plan.spec.training
    if training is None:
        return None
    halvings = range(training.micro_batch.bit_length())

    def fits(halving: int) -> bool:
        batch = training.micro_batch >> halving
        return training_bytes(plan, checkpoint_every=period, micro_batch=batch) <= room

    first = bisect_left(halvings, True, key=fits)
    return training.micro_batch >> first if first < len(halvings) else None
