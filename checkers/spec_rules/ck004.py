from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from checkers.rule import PlanRule, Problem
from checkers.what_if import training_bytes
from checkers.wording import gib
from gptoss_builder.findings import Severity
from gptoss_builder.plan.schema import Plan

TRIES = 6
"""Longer periods that are tried, from the longest on."""


@partial(
    PlanRule,
    code="CK004",
    title="no longer checkpoint period needs as little memory",
    why="A longer period recomputes fewer layers. Where its peak is no higher, the shorter one is "
    "dominated: slower, for nothing. An even period over an alternating pattern only ever meets "
    "one kind of layer, and that can be the small one.",
    bad="model: {layers: 12}\ntraining: {checkpoint_every: 2}   # 3 has a lower peak here",
    good="model: {layers: 12}\ntraining: {checkpoint_every: 3}",
    severity=Severity.ADVICE,
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or not training.checkpoint_every:
        return
    layers, period = plan.spec.model.layers, training.checkpoint_every
    for longer in islice(_longer_periods(layers, period), TRIES):
        needed = training_bytes(plan, checkpoint_every=longer)
        if needed <= estimate.total_bytes:
            yield Problem(
                "training.checkpoint_every",
                f"a period of {longer} recomputes {-(-layers // longer)} layers instead of "
                f"{-(-layers // period)}, and its peak is no higher ({gib(needed)} against "
                f"{gib(estimate.total_bytes)})",
                f"set checkpoint_every: {longer}",
            )
            return


def _longer_periods(layers: int, period: int) -> Iterator[int]:
    """The smallest period for each smaller number of recomputed layers, the longest first."""
    for recomputed in range(2, -(-layers // period)):
        longer = -(-layers // recomputed)
        if -(-layers // longer) == recomputed:
            yield longer
