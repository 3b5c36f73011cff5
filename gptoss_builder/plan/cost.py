"""Time and money of training, from FLOPs and bytes by component.

Each part runs at some fraction of the card's dense rate or of its bandwidth. The fractions
were measured on one H200 (torch 2.11, bf16, micro-batch 8 × 4,096, gpt_oss_lite's shapes); on
another card the same fractions are taken of its datasheet's rates, and the result is marked
`derived`. There is no table of prices: they go stale within weeks, so the user names one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gptoss_builder.plan.counts import ELEMENT_BYTES, attended_pairs, layer_window
from gptoss_builder.plan.schema import (
    AttentionKernel,
    Cost,
    CostItem,
    Execution,
    Flops,
    ParameterCounts,
)
from gptoss_builder.spec.schema import LayerKind, Spec
from gptoss_builder.targets import Target

_MEASURED_ON = "h200"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fraction of a rate that was reached, and where that was seen."""

    value: float
    evidence: str


_H200_RATE = 989.4e12


def _of_rate(teraflops: float, what: str) -> Efficiency:
    return Efficiency(teraflops * 1e12 / _H200_RATE, f"{teraflops:g} TFLOP/s on an H200: {what}")


PROJECTIONS = _of_rate(639, "the slowest of several large dense cuBLAS products")
HEAD = _of_rate(483, "vocabulary projection with its loss, 40 ms a step of 32,768 tokens")
UP = {
    "triton": _of_rate(545, "the fused W1/W3 kernel"),
    "grouped_mm": _of_rate(463, "grouped_mm with silu·mul compiled"),
    "loop": _of_rate(248.6, "the per-expert loop"),
}
DOWN_AND_BACKWARD = {
    "grouped_mm": _of_rate(608, "grouped_mm in the backward"),
    "loop": _of_rate(192, "forward and backward of the per-expert loop"),
}
SCORES: dict[tuple[AttentionKernel, LayerKind], tuple[Efficiency, Efficiency]] = {
    ("flash", "full"): (
        _of_rate(299, "FlashAttention-2 forward, 0.69 ms a layer"),
        _of_rate(216, "FlashAttention-2 backward, 2.39 ms a layer"),
    ),
    ("cudnn", "full"): (
        _of_rate(421, "cuDNN attention forward, 0.49 ms a layer"),
        _of_rate(361, "cuDNN attention backward, 1.43 ms a layer"),
    ),
    ("flash", "window"): (
        _of_rate(90.6, "FlashAttention-2 forward, window 128, 0.14 ms a layer"),
        _of_rate(52.0, "FlashAttention-2 backward, window 128, 0.61 ms a layer"),
    ),
}
OPTIMIZER = Efficiency(0.59, "fused AdamW, 5 ms for 501.8M parameters on an H200")
_ADAMW_BYTES = 28
"""Read parameter, gradient and two moments, write all but the gradient: seven fp32 values."""
_PASSES_OVER_D = 60
_PASSES_OVER_F = 8
ELEMENTWISE = Efficiency(
    0.42,
    "what is left of a measured step of 146 ms: norms, rotation, residuals, gathers, silu·mul",
)
_BOUND = Efficiency(1.0, "not measured: the datasheet's full rate, so the time is at least this")


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
    tokens = training.micro_batch * training.context * training.accumulate
    items = [
        *_products(spec, execution, flops, tokens, rate),
        *_scores(spec, execution, tokens, rate),
        _elementwise(spec, execution, tokens, target),
        _moved("optimizer", _ADAMW_BYTES * parameters.total, target, OPTIMIZER),
    ]
    seconds = sum(item.seconds for item in items)
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
    if any(item.evidence == _BOUND.evidence for item in items):
        return "bound"
    return "measured" if target.name == _MEASURED_ON else "derived"


def _products(
    spec: Spec, execution: Execution, flops: Flops, tokens: int, rate: float
) -> list[CostItem]:
    """The matrix products: forward, twice that backward, and what is computed again."""
    bf16 = execution.precision == "bf16"
    moe, forward = spec.model.moe, flops.forward
    again = len(execution.checkpointed_layers) / spec.model.layers
    up, down = (2 / 3) * forward.experts, (1 / 3) * forward.experts
    up_again = again + (1.0 if moe.backward == "recompute" else 0.0)
    up_kernel, other = UP[execution.up_products], DOWN_AND_BACKWARD[execution.backward_products]
    dense = forward.projections + forward.router + forward.shared_experts
    shared_again = forward.shared_experts * 2 / 3 if moe.backward == "recompute" else 0.0
    parts = (
        ("projections and shared experts", (3 + again) * dense + shared_again, PROJECTIONS),
        ("experts' up-projection", (1 + up_again) * up, up_kernel),
        ("experts' other products", 2 * up + (3 + again) * down, other),
        ("vocabulary and loss", 3 * forward.head, HEAD),
    )
    return [
        _computed(name, tokens * amount, rate, efficiency if bf16 else _BOUND)
        for name, amount, efficiency in parts
    ]


def _scores(spec: Spec, execution: Execution, tokens: int, rate: float) -> list[CostItem]:
    """Attention beyond its projections; a backward that keeps no scores is 5/2 of a forward."""
    training, attention = spec.training, spec.model.attention
    if training is None:
        return []
    kinds = spec.layer_kinds()
    items = []
    for kind in dict.fromkeys(kinds):
        kernel = execution.window_attention if kind == "window" else execution.full_attention
        forward, backward = SCORES.get((kernel, kind), (_BOUND, _BOUND))
        pairs = attended_pairs(training.context, layer_window(spec, kind)) / training.context
        layer = 4.0 * attention.heads * attention.head_dim * pairs * tokens
        layers = kinds.count(kind)
        again = sum(kinds[layer] == kind for layer in execution.checkpointed_layers)
        back = 2.0 if kernel == "math" else 2.5
        name = f"{kernel} attention, {kind} layers"
        items += [
            _computed(f"{name}, forward", (layers + again) * layer, rate, forward),
            _computed(f"{name}, backward", layers * back * layer, rate, backward),
        ]
    return items


def _elementwise(spec: Spec, execution: Execution, tokens: int, target: Target) -> CostItem:
    model, moe = spec.model, spec.model.moe
    again = len(execution.checkpointed_layers) / model.layers
    hidden = (moe.top_k + moe.shared_experts) * moe.d_ff
    width = _PASSES_OVER_D * model.d_model + _PASSES_OVER_F * hidden
    moved = tokens * model.layers * (1 + again / 3) * width * ELEMENT_BYTES[execution.precision]
    return _moved("elementwise", moved, target, ELEMENTWISE)


def _computed(name: str, flops: float, rate: float, efficiency: Efficiency) -> CostItem:
    return CostItem(
        name=name,
        seconds=flops / (rate * efficiency.value),
        flops=flops,
        bytes=0,
        efficiency=efficiency.value,
        evidence=efficiency.evidence,
    )


def _moved(name: str, moved: float, target: Target, efficiency: Efficiency) -> CostItem:
    return CostItem(
        name=name,
        seconds=moved / (target.bandwidth * efficiency.value),
        flops=0,
        bytes=moved,
        efficiency=efficiency.value,
        evidence=efficiency.evidence,
    )
