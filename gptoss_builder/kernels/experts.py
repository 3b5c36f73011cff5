"""A block of experts: gather, W1/W3, W2, weighted sum, and the backward of all of it.

One op, so that what is kept between forward and backward is written here and nowhere else:
the tokens and the routing, and with `save` gate and up. Neither h nor the rows that came out
of W2 are kept: the gradient of a row's weight is `⟨y, dy⟩ = ⟨h W2ᵀ, dy⟩ = ⟨h, dy W2⟩`, and
`dy W2` is needed anyway (the same identity as in SonicMoE, arXiv:2512.14080).
"""

# T tokens, K choices of a token, R = T·K rows sorted by expert, E experts, D model width,
# F hidden width of an expert

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gptoss_builder.errors import InputError
from gptoss_builder.kernels.elementwise import accurate_dtype, combine
from gptoss_builder.kernels.opaque import differentiable, opaque
from gptoss_builder.kernels.products import check_products, rows_product, weights_product
from gptoss_builder.kernels.up import (
    activation_backward,
    gather,
    up_backward,
    up_forward,
    up_gate_up,
)
from gptoss_builder.kernels.w1w3 import Backward, check_implementation, check_up
from gptoss_builder.plan.schema import Elementwise


class Routing(NamedTuple):
    """Which rows go where. For a dense block every field is as if there were one expert."""

    offsets_E: Tensor
    """int32, the end of each expert's rows."""
    rows_R: Tensor | None
    """The token of each row; None when row r is token r."""
    position_TK: Tensor | None
    """The row of each of a token's choices; None when row r is token r."""
    weight_TK: Tensor | None
    """fp32 weight of each choice; None for 1."""


class How(NamedTuple):
    """What runs, by name; the plan decides."""

    up: str
    """W1/W3: `triton`, `grouped_mm`, `loop` or `dense`."""
    down: str
    """W2, forward and backward: `grouped_mm`, `loop` or `dense`."""
    products: str
    """Products of the W1/W3 backward: `grouped_mm`, `loop` or `dense`."""
    backward: Backward
    """`recompute` computes gate and up again in the backward, `save` keeps them."""
    elementwise: Elementwise
    """What makes the elementwise kernels on a GPU: `compiled` is `torch.compile`, `triton` the same
    but for the backward of the activation, and `plain` is plain PyTorch."""
    launch: tuple[int, ...]
    """Launch configuration of the Triton kernel, as `up.encode_launch` writes it; else empty."""


def experts(x_TD: Tensor, w13_EFD: Tensor, w2_EDF: Tensor, routing: Routing, how: How) -> Tensor:
    """Compute `Σ_k weight_tk · W2_e (silu(W1_e x_t) · (W3_e x_t))` with e the k-th choice of t.

    Args:
        x_TD: tokens.
        w13_EFD: `[E, 2F, D]`, gate rows first, of the dtype of `x_TD`.
        w2_EDF: `[E, D, F]`, of the dtype of `x_TD`.
        routing: which rows go where; gradients reach its weights.
        how: what runs.

    Returns:
        `[T, D]` of the dtype of `x_TD`.

    Raises:
        CapError: D above 8,192, or F unless `dense`.
        InputError: shapes, dtypes or devices that do not fit.
        DeviceError: `grouped_mm` on a card where torch has no such kernel.
        MissingTritonError: `triton` is asked for and not installed.
        KernelError: the kernel does not compile or launch.
    """
    check_up(x_TD, w13_EFD, routing.offsets_E, routing.rows_R, dense=how.up == "dense")
    check_block(x_TD, w13_EFD, w2_EDF, routing)
    count, widths = len(w13_EFD), (x_TD.shape[1], w13_EFD.shape[1] // 2)
    if how.up != "dense":
        check_implementation(how.up, how.launch, x_TD, w13_EFD)
    for products in (how.down, how.products):
        check_products(products, x_TD, count, widths)
    y_TD, _ = experts_op(
        x_TD,
        w13_EFD,
        w2_EDF,
        *routing,
        how.up,
        how.down,
        how.products,
        how.backward == "save",
        how.elementwise,
        how.launch,
    )
    return y_TD


def check_block(x_TD: Tensor, w13_EFD: Tensor, w2_EDF: Tensor, routing: Routing) -> None:
    """Check what `check_up` does not see: W2 and the routing; raises InputError."""
    _, rows_R, position_TK, weight_TK = routing
    count, double_ff, d_model = w13_EFD.shape
    if w2_EDF.shape != (count, d_model, double_ff // 2) or w2_EDF.dtype != x_TD.dtype:
        raise InputError(
            f"w2 {list(w2_EDF.shape)} of {w2_EDF.dtype} does not fit w13 {list(w13_EFD.shape)} of "
            f"{w13_EFD.dtype}: it is [E, D, F] of the same dtype"
        )
    rows = None if rows_R is None else (len(x_TD), len(rows_R))
    if rows != (None if position_TK is None else (len(position_TK), position_TK.numel())):
        raise InputError("a routing has one position for each of its rows, [T, K], or neither")
    if weight_TK is not None:
        dtype = accurate_dtype(x_TD.dtype)
        if position_TK is None or weight_TK.shape != position_TK.shape or weight_TK.dtype != dtype:
            raise InputError(f"a routing's weights are {dtype}, one for each of its positions")
    devices = {t.device for t in (x_TD, w2_EDF, position_TK, weight_TK) if t is not None}
    if len(devices) > 1:
        raise InputError(
            f"the experts' tensors are on several devices: {sorted(map(str, devices))}"
        )


def forward_body(
    x_TD: Tensor,
    w13_EFD: Tensor,
    w2_EDF: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    position_TK: Tensor | None,
    weight_TK: Tensor | None,
    up: str,
    down: str,
    products: str,
    save: bool,
    elementwise: str,
    launch: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Compute y `[T, D]`, and with `save` gate and up `[R, 2F]` (else an empty tensor)."""
    compiled = elementwise != "plain"
    with torch.autocast(x_TD.device.type, enabled=False):
        h_RF, gate_up_RF = up_forward(
            x_TD, w13_EFD, offsets_E, rows_R, up, launch, save=save, compiled=compiled
        )
        y_RD = rows_product(h_RF, w2_EDF.transpose(1, 2), offsets_E, down)
        del h_RF
        y_TD = y_RD if position_TK is None else combine(y_RD, position_TK, weight_TK, compiled)
    return y_TD, gate_up_RF


def _fake_experts(
    x_TD: Tensor,
    w13_EFD: Tensor,
    w2_EDF: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    position_TK: Tensor | None,
    weight_TK: Tensor | None,
    up: str,
    down: str,
    products: str,
    save: bool,
    elementwise: str,
    launch: Sequence[int],
) -> tuple[Tensor, Tensor]:
    rows = x_TD.shape[0] if rows_R is None else rows_R.shape[0]
    gate_up_RF = x_TD.new_empty(rows, w13_EFD.shape[1]) if save else x_TD.new_empty(0)
    return x_TD.new_empty(x_TD.shape), gate_up_RF


def backward_body(
    dy_TD: Tensor,
    x_TD: Tensor,
    w13_EFD: Tensor,
    w2_EDF: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    position_TK: Tensor | None,
    weight_TK: Tensor | None,
    gate_up_RF: Tensor,
    up: str,
    down: str,
    products: str,
    save: bool,
    elementwise: str,
    launch: Sequence[int],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w13, w2 and the weights; one that `needs` leaves out is empty."""
    needs_x, needs_w13, needs_w2, needs_weight = needs
    empty = x_TD.new_empty(0)
    with torch.autocast(x_TD.device.type, enabled=False):
        dy_RD = gather(dy_TD, rows_R)
        dh_RF = rows_product(dy_RD, w2_EDF, offsets_E, down)
        if not save:
            gate_up_RF = up_gate_up(x_TD, w13_EFD, offsets_E, rows_R, up, launch)
        scale_R = None
        if weight_TK is not None and position_TK is not None:
            scale_R = weight_TK.new_empty(weight_TK.numel())
            scale_R.scatter_(0, position_TK.flatten(), weight_TK.flatten())
        gate_up_RF, h_RF, dscale_R = activation_backward(
            gate_up_RF, dh_RF, scale_R, elementwise, keep=save
        )
        del dh_RF
        dw2_EDF = weights_product(dy_RD, h_RF, offsets_E, down) if needs_w2 else empty
        del dy_RD, h_RF
        dx_TD, dw13_EFD = up_backward(
            gate_up_RF,
            x_TD,
            w13_EFD,
            offsets_E,
            rows_R,
            products,
            needs_x=needs_x,
            needs_w13=needs_w13,
        )
        if position_TK is None:
            return dx_TD, dw13_EFD, dw2_EDF, empty
        del gate_up_RF
        if needs_x:
            dx_TD = combine(dx_TD, position_TK, None, elementwise != "plain")
        return dx_TD, dw13_EFD, dw2_EDF, dscale_R[position_TK] if needs_weight else empty


def _fake_experts_backward(
    _: Tensor, x_TD: Tensor, w13_EFD: Tensor, w2_EDF: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    weight_TK, needs = rest[3], rest[-1]
    return tuple(
        x_TD.new_empty(0) if tensor is None or not needed else tensor.new_empty(tensor.shape)
        for tensor, needed in zip((x_TD, w13_EFD, w2_EDF, weight_TK), needs, strict=True)
    )


experts_op = opaque(_fake_experts, name="experts")(forward_body)
experts_op_backward = opaque(_fake_experts_backward, name="experts_backward")(backward_body)

BODIES = {"gptoss::experts": forward_body, "gptoss::experts_backward": backward_body}
"""Bodies by op, for whoever follows what happens inside: a memory count under fake tensors runs
the body in place of the op."""


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, up, down, products, save, elementwise, launch = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[1])
    ctx.how = (up, down, products, save, elementwise, launch)


def _backward(ctx: Any, dy_TD: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dy_TD is None:
        return (None,) * 13
    flags = ctx.needs_input_grad
    needs = (flags[0], flags[1], flags[2], flags[6])
    run: Callable[..., tuple[Tensor, ...]] = experts_op_backward
    grads = run(dy_TD, *ctx.saved_tensors, *ctx.how, needs)
    dx, dw13, dw2, dweight = (g if need else None for g, need in zip(grads, needs, strict=True))
    return (dx, dw13, dw2, None, None, None, dweight, *(None,) * 6)


differentiable(experts_op, _backward, _setup_context)
