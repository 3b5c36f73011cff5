from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.what_if import training_bytes
from checkers.wording import gib
from gptoss_builder.findings import Severity
from gptoss_builder.plan.schema import Plan


@partial(
    PlanRule,
    code="CK004",
    title="no longer checkpoint period needs as little memory",
    why="A longer period recomputes fewer layers. Where it has the same peak, the shorter one "
    "is dominated: slower, for nothing.",
    bad="model: {layers: 12}\ntraining: {checkpoint_every: 1}   # period 2 has the same peak",
    good="model: {layers: 12}\ntraining: {checkpoint_every: 2}",
    severity=Severity.ADVICE,
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or not training.checkpoint_every:
        return
    layers, period = plan.spec.model.layers, training.checkpoint_every
    recomputed = -(-layers // period)
    if recomputed == 1 or training_bytes(plan, checkpoint_every=0) <= estimate.total_bytes:
        return  # CK001 and CK003 say so.
    longer = -(-layers // (recomputed - 1))
    if training_bytes(plan, checkpoint_every=longer) <= estimate.total_bytes:
        yield Problem(
            "training.checkpoint_every",
            f"a period of {longer} recomputes {-(-layers // longer)} layers instead of "
            f"{recomputed}, and its peak is no higher ({gib(estimate.total_bytes)})",
            f"set checkpoint_every: {longer}",
        )
