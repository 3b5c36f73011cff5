from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.wording import NARROWER, gib
from gptoss_builder.plan.advice import breakdown, what_trains
from gptoss_builder.plan.fit import room
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
    usable, available = plan.target.memory_bytes, room(plan)
    if estimate.total_bytes <= available:
        return
    changes = what_trains(plan, available)
    yield Problem(
        "training.micro_batch" if "micro_batch" in training.model_fields_set else "training",
        f"training needs {gib(estimate.total_bytes)} at its peak ({estimate.peak}) and "
        f"{gib(usable - available)} of margin, but {plan.target.name} has {gib(usable)}; at the "
        f"peak: {breakdown(estimate)}",
        f"set {changes}" if changes else NARROWER,
    )
