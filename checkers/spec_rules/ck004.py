from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.wording import divisors_near, gib
from gptoss_builder.findings import Severity
from gptoss_builder.plan.fit import dominating_period
from gptoss_builder.plan.schema import Plan


@partial(
    PlanRule,
    code="CK004",
    title="no cheaper checkpointing needs as little memory",
    why="Settings are dominated where another period or another model.moe.backward takes less "
    "time, as predicted for the card, and no more memory: slower, for nothing. An even period over "
    "an alternating pattern only ever meets one kind of layer, and that can be the small one; and "
    "where every layer is checkpointed, backward: recompute computes gate and up a third time. "
    "`gptoss-build --periods` prints the whole table.",
    bad="model: {layers: 12}\ntraining: {checkpoint_every: 2}   # 3 has a lower peak here",
    good="model: {layers: 12}\ntraining: {checkpoint_every: 3}",
    severity=Severity.ADVICE,
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or not training.checkpoint_every:
        return
    every, backward = training.checkpoint_every, plan.spec.model.moe.backward
    if _told_first(plan.spec.model.layers, every):
        return
    better = dominating_period(plan)
    if better is None or plan.flops.step is None:
        return
    if better.every == 0 and better.backward == backward:
        return  # that is CK003's
    settings = [f"checkpoint_every: {better.every}"] * (better.every != every)
    settings += [f"model.moe.backward: {better.backward}"] * (better.backward != backward)
    if plan.cost is not None and better.step_seconds is not None:
        gain = f"{1 - better.step_seconds / plan.cost.step_seconds:.1%} less time, as predicted"
    else:
        gain = f"{1 - better.step_flops / plan.flops.step:.1%} fewer FLOPs"
    yield Problem(
        "training.checkpoint_every",
        f"with {' and '.join(settings)} a step takes {gain}, and its peak is no "
        f"higher ({gib(better.total_bytes)} against {gib(estimate.total_bytes)})",
        f"set {' and '.join(settings)}",
    )


def _told_first(layers: int, every: int) -> bool:
    """Whether CK001 or CK002 says what to set first."""
    if every >= layers:
        return layers > 1
    return layers % every > 0 and divisors_near(layers, every, layers // 2) != (1,)
