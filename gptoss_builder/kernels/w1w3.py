"""The W1/W3 op: `silu(x W1ᵀ) · (x W3ᵀ)` for rows that each belong to one expert.

The op does what it is told: `implementation` names what runs, and if that cannot run the call
fails. Its parts are in `up.py`, shared with the whole expert block.
"""

# R rows sorted by expert, T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gptoss_builder.errors import CapError, InputError
from gptoss_builder.kernels.elementwise import accurate_dtype
from gptoss_builder.kernels.opaque import differentiable, opaque
from gptoss_builder.kernels.products import check_products
from gptoss_builder.kernels.up import (
    activation_backward,
    encode_launch,
    triton_module,
    up_backward,
    up_forward,
    up_gate_up,
)
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from gptoss_builder.plan.schema import LaunchConfig
from gptoss_builder.spec.schema import HARD_CAP

Up = Literal["triton", "grouped_mm", "loop"]
Backward = Literal["recompute", "save"]
Products = Literal["grouped_mm", "loop"]


def w1w3(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    *,
    implementation: Literal["reference", "triton", "grouped_mm", "loop"],
    launch: LaunchConfig | None = None,
    rows_R: Tensor | None = None,
    backward: Backward = "recompute",
    products: Products = "loop",
) -> Tensor:
    """Gated up-projection of every expert.

    Args:
        x_TD: tokens `[T, D]`, or rows `[R, D]` sorted by expert when `rows_R` is None; any strides.
        w13_EFD: `[E, 2F, D]` of the same dtype, gate rows (W1) first; any strides.
        offsets_E: int32 `[E]`, the end of each expert's rows; the last is R.
        implementation: what runs: the Triton kernel, `grouped_mm`, a `loop` over the experts, or
            the `reference`.
        launch: launch configuration of the Triton kernel, needed by `triton` alone.
        rows_R: integer `[R]`, the token of each row.
        backward: `recompute` keeps the inputs alone; `save` keeps gate and up, `[R, 2F]`.
        products: what computes the products of the backward.

    Returns:
        `[R, F]` of the dtype of `x_TD`. Gradients reach `x_TD` and `w13_EFD` only.

    Raises:
        CapError: D or F above 8,192.
        InputError: shapes, dtypes or devices that do not fit.
        LaunchError: a launch configuration that Triton takes on no card.
        MissingTritonError: `triton` is asked for and not installed.
        KernelError: the kernel does not compile or launch.
    """
    check_up(x_TD, w13_EFD, offsets_E, rows_R)
    if implementation == "reference":
        return w1w3_reference(x_TD, w13_EFD, offsets_E, rows_R)
    encoded = encode_launch(launch)
    check_implementation(implementation, encoded, x_TD, w13_EFD)
    if torch.is_grad_enabled() and (x_TD.requires_grad or w13_EFD.requires_grad):
        check_products(products, x_TD, len(w13_EFD), (x_TD.shape[1], w13_EFD.shape[1] // 2))
    h_RF, _ = w1w3_op(
        x_TD,
        w13_EFD,
        offsets_E,
        rows_R,
        implementation,
        encoded,
        products,
        backward == "save",
    )
    return h_RF


def check_up(
    x_TD: Tensor, w13_EFD: Tensor, offsets_E: Tensor, rows_R: Tensor | None, *, dense: bool = False
) -> None:
    """Check shapes, dtypes, devices and the hard caps; raises CapError or InputError."""
    if x_TD.dim() != 2 or w13_EFD.dim() != 3 or offsets_E.dim() != 1:
        raise InputError(
            f"w1w3 takes x [T, D], w13 [E, 2F, D] and offsets [E], and got {tuple(x_TD.shape)}, "
            f"{tuple(w13_EFD.shape)} and {tuple(offsets_E.shape)}"
        )
    experts, double_ff, d_model = w13_EFD.shape
    # shared experts are one block, `dense`, whose width is of all of them: the cap is of one expert
    widths = {"d_model": d_model} if dense else {"d_model": d_model, "d_ff": double_ff // 2}
    for name, width in widths.items():
        if width > HARD_CAP:
            raise CapError(f"{name} is {width}; the cap is {HARD_CAP}: use a narrower model")
    if x_TD.shape[1] != d_model or double_ff % 2 or not experts or not d_model or not double_ff:
        raise InputError(
            f"x {tuple(x_TD.shape)} and w13 {tuple(w13_EFD.shape)} do not fit: the last "
            "dimensions are d_model, and w13 holds gate and up rows of equal number"
        )
    if offsets_E.shape[0] != experts or offsets_E.dtype != torch.int32:
        raise InputError(
            f"offsets must be int32 [{experts}], the end of each expert's rows, "
            f"not {offsets_E.dtype} {list(offsets_E.shape)}"
        )
    if w13_EFD.dtype != x_TD.dtype or not x_TD.is_floating_point():
        raise InputError(f"x is {x_TD.dtype} and w13 is {w13_EFD.dtype}: cast one of them")
    if rows_R is not None and (rows_R.dim() != 1 or rows_R.dtype not in (torch.int32, torch.int64)):
        raise InputError(f"rows must be a vector of int32 or int64, not {rows_R.dtype}")
    devices = {t.device for t in (x_TD, w13_EFD, offsets_E, rows_R) if t is not None}
    if len(devices) > 1:
        raise InputError(f"w1w3's tensors are on several devices: {sorted(map(str, devices))}")


def check_implementation(
    implementation: str, launch: Sequence[int], x_TD: Tensor, w13_EFD: Tensor
) -> None:
    """Check that `implementation` can run on these inputs.

    Raises:
        InputError: an unknown name, no launch configuration, a dtype or width it cannot take.
        MissingTritonError: `triton` is asked for and not installed.
        DeviceError: `grouped_mm` on a card where torch has no such kernel.
    """
    if implementation == "triton":
        if not launch:
            raise InputError("the Triton kernel needs launch=LaunchConfig(...); see plan.launch")
        # Dynamo cannot trace an import; the op's own body, which it does not trace, does it then.
        if not torch.compiler.is_compiling():
            triton_module()
    elif implementation in ("grouped_mm", "loop"):
        check_products(implementation, x_TD, len(w13_EFD), (x_TD.shape[1], w13_EFD.shape[1] // 2))
    else:
        raise InputError(
            f"implementation={implementation!r} is unknown; use reference, triton, grouped_mm "
            "or loop"
        )


def _fake_w1w3(
    x_TD: Tensor,
    w13_EFD: Tensor,
    _: Tensor,
    rows_R: Tensor | None,
    up: str,
    launch: Sequence[int],
    products: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    rows = x_TD.shape[0] if rows_R is None else rows_R.shape[0]
    double_ff = w13_EFD.shape[1]
    gate_up_RF = x_TD.new_empty(rows, double_ff) if save else x_TD.new_empty(0)
    return x_TD.new_empty(rows, double_ff // 2), gate_up_RF


@opaque(_fake_w1w3)
def w1w3_op(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    up: str,
    launch: Sequence[int],
    products: str,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """Compute h, and gate and up with `save`; `products` is for the backward."""
    with torch.autocast(x_TD.device.type, enabled=False):
        return up_forward(
            x_TD, w13_EFD, offsets_E, rows_R, up, launch, save=save, compiled=up != "loop"
        )


def _fake_w1w3_backward(
    _: Tensor, x_TD: Tensor, w13_EFD: Tensor, *how: Any
) -> tuple[Tensor, Tensor]:
    needs_x, needs_w13 = how[-2:]
    return (
        x_TD.new_empty(x_TD.shape if needs_x else (0,)),
        w13_EFD.new_empty(w13_EFD.shape if needs_w13 else (0,)),
    )


@opaque(_fake_w1w3_backward)
def w1w3_op_backward(
    dh_RF: Tensor,
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    gate_up_RF: Tensor,
    up: str,
    launch: Sequence[int],
    products: str,
    save: bool,
    needs_x: bool,
    needs_w13: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and w13; one that is not needed is empty."""
    with torch.autocast(x_TD.device.type, enabled=False):
        if not save:
            gate_up_RF = up_gate_up(x_TD, w13_EFD, offsets_E, rows_R, up, launch)
        dh_RF = dh_RF.clone(memory_format=torch.contiguous_format)
        elementwise = {"triton": "triton", "loop": "plain"}.get(up, "compiled")
        dgate_up_RF, _, _ = activation_backward(gate_up_RF, dh_RF, None, elementwise, keep=save)
        dx_RD, dw13_EFD = up_backward(
            dgate_up_RF,
            x_TD,
            w13_EFD,
            offsets_E,
            rows_R,
            products,
            needs_x=needs_x,
            needs_w13=needs_w13,
        )
    if needs_x and rows_R is not None:
        return sum_rows(dx_RD, rows_R, x_TD.shape[0]), dw13_EFD
    return dx_RD, dw13_EFD


def sum_rows(dx_RD: Tensor, rows_R: Tensor, tokens: int) -> Tensor:
    """Sum each token's rows, in fp32 (fp64 for fp64) and with the same bits every time."""
    dtype = accurate_dtype(dx_RD.dtype)
    sum_TD = dx_RD.new_zeros(tokens, dx_RD.shape[1], dtype=dtype)
    if dx_RD.is_cuda:  # there index_add_ adds with atomics, and index_put_ sorts
        sum_TD.index_put_((rows_R,), dx_RD.to(dtype), accumulate=True)
    else:  # here index_put_ adds with atomics, and index_add_ goes row by row
        sum_TD.index_add_(0, rows_R, dx_RD.to(dtype))
    return sum_TD.to(dx_RD.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_TD, w13_EFD, offsets_E, rows_R, *how = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_TD, w13_EFD, offsets_E, rows_R, output[1])
    ctx.how = how


def _backward(ctx: Any, dh_RF: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dh_RF is None:
        return (None,) * 8
    needs_x, needs_w13 = ctx.needs_input_grad[:2]
    run: Callable[..., tuple[Tensor, Tensor]] = w1w3_op_backward
    dx_TD, dw13_EFD = run(dh_RF, *ctx.saved_tensors, *ctx.how, needs_x, needs_w13)
    grads = (dx_TD if needs_x else None, dw13_EFD if needs_w13 else None)
    return (*grads, *(None,) * 6)


differentiable(w1w3_op, _backward, _setup_context)
