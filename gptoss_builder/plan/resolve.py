"""Spec and target become a plan: every decision is made here, once.

The rules in `checkers` find what cannot work and say where in the file; what reaches this
module all the same is refused here, in words.
"""

from __future__ import annotations

from gptoss_builder.errors import CapError, TargetError
from gptoss_builder.plan.cost import estimate_cost
from gptoss_builder.plan.counts import count_flops, count_kv_cache, count_parameters
from gptoss_builder.plan.heuristic import heuristic
from gptoss_builder.plan.launch import choose
from gptoss_builder.plan.memory import estimate_memory
from gptoss_builder.plan.schema import (
    AttentionKernel,
    Elementwise,
    Execution,
    LaunchConfig,
    Plan,
    Products,
    UpProducts,
)
from gptoss_builder.spec.schema import HARD_CAP, Dispatch, Precision, Spec
from gptoss_builder.targets import ARCHITECTURES, Target

_UP_PRODUCTS: dict[Dispatch, UpProducts] = {
    "stacked": "loop",
    "grouped_mm": "grouped_mm",
    "triton_grouped": "triton",
}


def resolve(spec: Spec, target: Target, *, price_per_hour: float | None = None) -> Plan:
    """The plan of `spec` on `target`; `price_per_hour` adds the money to its cost.

    Raises:
        CapError: d_model or d_ff above the hard cap.
        TargetError: the target cannot run what the spec asks for.
        LaunchError: no launch configuration of the kernel works there.
    """
    _check_caps(spec)
    spec = spec.model_copy(update={"target": spec.target.model_copy(update={"gpu": target.name})})
    execution = decide(spec, target)
    parameters = count_parameters(spec.model)
    flops = count_flops(spec, execution)
    cache = count_kv_cache(spec, execution.precision)
    launch = _launch(spec, target, execution)
    return Plan(
        spec=spec,
        target=target,
        execution=execution,
        launch=launch,
        kernel_build="not_used" if launch is None else "not_compiled",
        parameters=parameters,
        flops=flops,
        kv_cache=cache,
        memory=estimate_memory(spec, execution, parameters, cache),
        heuristic=heuristic(spec, parameters.total),
        cost=estimate_cost(
            spec, target, execution, parameters, flops, price_per_hour=price_per_hour
        ),
    )


def decide(spec: Spec, target: Target) -> Execution:
    """What runs, by name.

    Raises:
        TargetError: the target cannot run what the spec asks for.
    """
    precision = _precision(spec, target)
    _check_dispatch(spec, target, precision)
    moe, training = spec.model.moe, spec.training
    products = _products(spec, target, precision)
    window_attention, full_attention = _attention(spec, target, precision)
    every = training.checkpoint_every if training is not None else 0
    compiled = training.compile if training is not None else False
    return Execution(
        device="cpu" if target.arch == "cpu" else "cuda",
        precision=precision,
        dispatch=moe.dispatch,
        up_products=_UP_PRODUCTS[moe.dispatch],
        down_products=products,
        backward_products=products,
        backward=moe.backward,
        elementwise=_elementwise(moe.dispatch, target, compiled=compiled),
        window_attention=window_attention,
        full_attention=full_attention,
        checkpointed_layers=tuple(range(0, spec.model.layers, every)) if every else (),
        compile=compiled,
    )


def _elementwise(dispatch: Dispatch, target: Target, *, compiled: bool) -> Elementwise:
    if dispatch == "triton_grouped":
        return "triton"
    # stacked is plain PyTorch and asks for no compiler; it takes the one that the spec asks for
    if target.arch == "cpu" or (dispatch == "stacked" and not compiled):
        return "plain"
    return "compiled"


def _check_caps(spec: Spec) -> None:
    # The schema refuses these too; a spec built without validation must not slip through.
    for name, width in (("d_model", spec.model.d_model), ("d_ff", spec.model.moe.d_ff)):
        if not 1 <= width <= HARD_CAP:
            raise CapError(f"{name} is {width}; it must be from 1 to {HARD_CAP}")


def _precision(spec: Spec, target: Target) -> Precision:
    if spec.training is None:
        # Only training names a precision; a spec for serving takes the card's best.
        return "bf16" if target.bf16_rate else "fp32"
    precision = spec.training.precision
    if precision == "bf16" and target.arch != "cpu" and not target.bf16_rate:
        raise TargetError(
            f"training.precision is bf16, and {target.name} ({target.arch}) has no bf16; "
            "set fp32 or take a card of sm80 or later"
        )
    return precision


GROUPED_MM_EXPERTS = 1023
"""Most groups that torch's grouped kernel takes (`GroupMM.cu` of torch 2.11)."""


def _check_dispatch(spec: Spec, target: Target, precision: Precision) -> None:
    moe = spec.model.moe
    if moe.dispatch == "stacked":
        return
    asked = f"model.moe.dispatch is {moe.dispatch}"
    if target.arch == "cpu":
        raise TargetError(f"{asked}, which needs a GPU, and the target is cpu; set stacked")
    for name, width in (("d_model", spec.model.d_model), ("d_ff", moe.d_ff)):
        if width % 8:
            raise TargetError(f"{asked}, which needs multiples of 8, and {name} is {width}")
    if moe.experts > GROUPED_MM_EXPERTS and _native_grouped_mm(target, precision):
        raise TargetError(
            f"{asked}, with products by grouped_mm on {target.name}, which takes at most "
            f"{GROUPED_MM_EXPERTS} experts, and experts is {moe.experts}; set stacked or fewer"
        )
    if moe.dispatch == "grouped_mm" and not _native_grouped_mm(target, precision):
        raise TargetError(
            f"{asked}, which is native only in bf16 on sm90, sm100 and sm103, and the target is "
            f"{target.name} ({target.arch}) in {precision}; set stacked or triton_grouped"
        )


def _native_grouped_mm(target: Target, precision: Precision) -> bool:
    if target.arch == "cpu":
        return False
    return precision == "bf16" and ARCHITECTURES[target.arch].grouped_mm == "native"


def _products(spec: Spec, target: Target, precision: Precision) -> Products:
    if spec.model.moe.dispatch != "stacked" and _native_grouped_mm(target, precision):
        return "grouped_mm"
    return "loop"


def _attention(
    spec: Spec, target: Target, precision: Precision
) -> tuple[AttentionKernel, AttentionKernel]:
    """Kernels of window and full layers."""
    attention = spec.model.attention
    possible = (
        target.arch not in ("cpu", "sm75")
        and precision == "bf16"
        and attention.head_dim % 8 == 0
        and attention.head_dim <= _FLASH_HEAD_DIM
    )
    if attention.backend == "math" or (attention.backend == "auto" and not possible):
        return "math", "math"
    if not possible:
        raise TargetError(
            "model.attention.backend is flash, which needs bf16 on sm80 or later and a head_dim "
            f"that is a multiple of 8 and at most {_FLASH_HEAD_DIM}; the target is {target.name} "
            f"({target.arch}) in {precision} with head_dim {attention.head_dim}; set auto or math"
        )
    # cuDNN's attention takes no single token
    alone = spec.training is not None and spec.training.context == 1
    if attention.backend == "auto" and not alone and _cudnn(target, attention.head_dim):
        return "flash", "cudnn"
    return "flash", "flash"


_FLASH_HEAD_DIM = 256
_CUDNN_HEAD_DIM = 128


def _cudnn(target: Target, head_dim: int) -> bool:
    # Measured on an H200 at 8 × 4,096: forward 0.49 ms against FlashAttention-2's 0.69,
    # backward 1.43 against 2.39. With a window cuDNN brings nothing. Not run on sm100 and sm103.
    return target.arch in ("sm90", "sm100", "sm103") and head_dim <= _CUDNN_HEAD_DIM


def _launch(spec: Spec, target: Target, execution: Execution) -> LaunchConfig | None:
    if execution.up_products != "triton":
        return None
    return choose(
        target.arch, execution.precision, spec.model.d_model, spec.model.moe.d_ff, spec.kernel
    )
