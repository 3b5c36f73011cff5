from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
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
    margin = plan.spec.target.margin_gib * GIB
    usable = plan.target.memory_bytes
    if estimate.total_bytes + margin <= usable:
        return
    every = training.checkpoint_every
    choices = [
        f"lower training.micro_batch (now {training.micro_batch})"
        if training.micro_batch > 1
        else "",
        f"set training.checkpoint_every to a smaller period (now {every})" if every != 1 else "",
        f"shorten training.context (now {training.context})",
        "take a larger card",
    ]
    yield Problem(
        "training.micro_batch",
        f"training needs {gib(estimate.total_bytes)} at its peak ({estimate.peak}) and "
        f"{gib(margin)} of margin, but {plan.target.name} has {gib(usable)}",
        ", ".join(choices) + ", or take a larger card",
    )
