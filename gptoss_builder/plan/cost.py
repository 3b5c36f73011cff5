"""Time and money of training, from FLOPs and bytes by component.

The components are those of the profile that `benchmarks.train_step --profile` prints, so each
can be held to its measurement. Each reaches a fraction of the card's dense rate or of its
bandwidth (`plan.cost_rates`); on a card other than the one that was measured the result is
marked `derived`. There is no table of prices: they go stale within weeks, so the user names one.
"""

from __future__ import annotations

from typing import Literal

from gptoss_builder.plan.cost_items import Step
from gptoss_builder.plan.cost_rates import BOUND, MEASURED_ON
from gptoss_builder.plan.schema import Cost, CostItem, Execution, Flops, ParameterCounts
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target


def estimate_cost(
    spec: Spec,
    target: Target,
    execution: Execution,
    parameters: ParameterCounts,
    flops: Flops,
    *,
    price_per_hour: float | None = None,
) -> Cost | None:
    """Step time, tokens a second, hours and money; None without training or on `cpu`."""
    training = spec.training
    if training is None or flops.backward is None or target.arch == "cpu":
        return None
    rate = target.bf16_rate if execution.precision == "bf16" else target.fp32_rate
    step = Step(spec, training, execution, parameters, rate, target.bandwidth)
    items = [item for item in step.items(flops) if item.seconds]
    seconds = sum(item.seconds for item in items)
    tokens = training.micro_batch * training.context * training.accumulate
    hours = seconds * training.steps / 3600
    model_flops = (flops.forward.total + flops.backward.total) * tokens
    return Cost(
        source=_source(items, target),
        step_seconds=seconds,
        tokens_per_second=tokens / seconds,
        gpu_hours=hours,
        model_flops_utilization=model_flops / seconds / rate,
        items=tuple(items),
        price_per_hour=price_per_hour,
        price=None if price_per_hour is None else hours * price_per_hour,
    )


def _source(items: list[CostItem], target: Target) -> Literal["measured", "derived", "bound"]:
    if any(item.evidence == BOUND.evidence for item in items):
        return "bound"
    return "measured" if target.name == MEASURED_ON else "derived"
