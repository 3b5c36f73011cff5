from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.wording import gib
from gptoss_builder.findings import Severity
from gptoss_builder.plan.fit import room, without_checkpointing
from gptoss_builder.plan.schema import Plan

LEAST = 0.01
"""Smallest part of the peak that is worth recomputing layers for."""


@partial(
    PlanRule,
    code="CK003",
    title="gradient checkpointing lowers the peak by at least 1%",
    why="Where parameters, optimizer or logits make the peak, recomputing layers costs time and "
    "saves next to nothing.",
    bad="model: {layers: 2, vocab: 200000}\ntraining: {context: 16, checkpoint_every: 1}",
    good="model: {layers: 2, vocab: 200000}\ntraining: {context: 16, checkpoint_every: 0}",
    severity=Severity.ADVICE,
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or not training.checkpoint_every:
        return
    without = without_checkpointing(plan)
    if plan.target.memory_bytes and without > room(plan):
        return  # the little that it saves is what makes it fit
    saved = without - estimate.total_bytes
    if saved < LEAST * without:
        yield Problem(
            "training.checkpoint_every",
            f"a period of {training.checkpoint_every} saves {gib(max(saved, 0))} of "
            f"{gib(without)}; the peak is elsewhere ({estimate.peak})",
            "set checkpoint_every: 0",
        )
