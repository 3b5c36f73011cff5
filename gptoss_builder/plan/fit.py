"""What each checkpoint period costs in memory and time, by the estimates of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gptoss_builder.plan.cost import estimate_cost
from gptoss_builder.plan.counts import count_flops
from gptoss_builder.plan.memory import Peak, training_peak
from gptoss_builder.plan.resolve import decide
from gptoss_builder.plan.schema import Plan
from gptoss_builder.plan.training_memory import training_floor
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target

GIB = 2**30
_ROUNDING = 1e-9
"""Relative difference of times or FLOPs, which are floats, that means nothing."""


@dataclass(frozen=True, slots=True)
class Period:
    """What one checkpoint period comes to."""

    every: int
    """`training.checkpoint_every`; 0 is off."""
    backward: Literal["recompute", "save"]
    """`model.moe.backward`."""
    total_bytes: int
    """Reserved peak and context."""
    peak: str
    """The moment that makes it."""
    step_flops: float
    """FLOPs of a token: forward, backward and what is computed again."""
    extra: float
    """step_flops over those of no checkpointing with `save`, less one."""
    step_seconds: float | None
    """Predicted time of an optimizer step; None on `cpu`, of which nothing is assumed."""


def sqrt_period(layers: int) -> float:
    """theory.txt's optimum: √L segments, so a period of √L. Our table says what it is here."""
    return math.sqrt(layers)


def room(plan: Plan) -> int:
    """Bytes that training may take on the plan's card, its margin kept; the card must have any."""
    return plan.target.memory_bytes - int(plan.spec.target.margin_gib * GIB)


def period_table(plan: Plan) -> tuple[Period, ...]:
    """Every period that differs, with and without `backward: recompute`, fastest first.

    By predicted time, or by FLOPs where no time is predicted.
    """
    settings = _settings(plan, periods(plan.spec.model.layers))
    return tuple(_row(plan, setting) for setting in settings)


def dominating_period(plan: Plan) -> Period | None:
    """The fastest row that is faster than the plan's own settings and needs no more memory.

    Of periods that checkpoint more than the first layer and divide the layers, if any does but 1.
    """
    own, step = plan.memory.training, plan.flops.step
    if own is None or step is None:
        return None
    takes = plan.cost.step_seconds if plan.cost is not None else step
    for setting in _settings(plan, _sound_periods(plan.spec.model.layers)):
        if setting.takes >= takes * (1 - _ROUNDING):
            return None
        if _floor(plan, setting.spec) > own.allocated_bytes:
            continue  # most end here, and the whole estimate is not made
        row = _row(plan, setting)
        if row.total_bytes <= own.total_bytes:
            return row
    return None


class _Setting(NamedTuple):
    """A spec with another period or backward, before its memory is known."""

    spec: Spec
    step_flops: float
    extra: float
    step_seconds: float | None

    @property
    def takes(self) -> float:
        """What settings are ordered by; of one plan all have a time, or none has."""
        return self.step_flops if self.step_seconds is None else self.step_seconds


def _settings(plan: Plan, periods: Iterable[int]) -> list[_Setting]:
    """No checkpointing and `periods`, with both backwards, fastest first."""
    if plan.spec.training is None:
        return []
    specs = [
        _with_backward(_with_training(plan.spec, checkpoint_every=every), backward)
        for every in (0, *periods)
        for backward in ("save", "recompute")
    ]
    found: list[_Setting] = []
    for spec in specs:
        execution = decide(spec, plan.target)
        flops = count_flops(spec, execution)
        step = flops.step or 0.0
        least = found[0].step_flops if found else step
        cost = estimate_cost(spec, plan.target, execution, plan.parameters, flops)
        seconds = None if cost is None else cost.step_seconds
        found.append(_Setting(spec, step, step / least - 1, seconds))
    return sorted(found, key=lambda setting: setting.takes)


def _row(plan: Plan, setting: _Setting) -> Period:
    training, peak = setting.spec.training, training_memory(plan, setting.spec)
    return Period(
        training.checkpoint_every if training is not None else 0,
        setting.spec.model.moe.backward,
        peak.total_bytes,
        peak.name,
        setting.step_flops,
        setting.extra,
        setting.step_seconds,
    )


def without_checkpointing(plan: Plan) -> int:
    """Bytes that training would need with checkpoint_every 0; the plan must have training."""
    return training_memory(plan, _with_training(plan.spec, checkpoint_every=0)).total_bytes


def fastest_period(plan: Plan, available: int) -> Period | None:
    """The fastest row that needs at most `available` bytes; None if none does."""
    return next((row for row in period_table(plan) if row.total_bytes <= available), None)


def periods(layers: int) -> tuple[int, ...]:
    """The shortest period for every number of checkpointed layers that there is, longest first."""
    return tuple({-(-layers // every): every for every in range(layers, 0, -1)}.values())


def _sound_periods(layers: int) -> tuple[int, ...]:
    """Those that checkpoint more than the first of several layers, and divide them if any can."""
    several = tuple(every for every in periods(layers) if every < max(layers, 2))
    even = tuple(every for every in several if layers % every == 0)
    return several if even == (1,) else even


def _with_training(spec: Spec, **changes: int) -> Spec:
    if spec.training is None:
        return spec
    return spec.model_copy(update={"training": spec.training.model_copy(update=changes)})


def _with_backward(spec: Spec, backward: str) -> Spec:
    moe = spec.model.moe.model_copy(update={"backward": backward})
    return spec.model_copy(update={"model": spec.model.model_copy(update={"moe": moe})})


def training_memory(plan: Plan, spec: Spec, target: Target | None = None) -> Peak:
    """The peak of training a spec of the plan's model, on another card perhaps.

    Raises:
        TargetError: the card cannot run what the spec asks for.
    """
    return training_peak(spec, decide(spec, target or plan.target), plan.parameters)


def _floor(plan: Plan, spec: Spec) -> int:
    """Bytes that training needs at least: what is held when the forward ends."""
    return training_floor(spec, decide(spec, plan.target), plan.parameters)
