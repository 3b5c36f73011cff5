"""The parts of the up-projection: W1/W3 with its activation, forward and backward.

`up` names what computes W1/W3: `triton`, `grouped_mm`, `loop` or `dense`.
"""

# R rows sorted by expert, T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from gptoss_builder.errors import LaunchError, MissingTritonError, install
from gptoss_builder.kernels.elementwise import accurate_dtype, silu_mul, silu_mul_backward
from gptoss_builder.kernels.launches import launches
from gptoss_builder.kernels.opaque import opaque
from gptoss_builder.kernels.products import rows_product, weights_product
from gptoss_builder.plan.launch import resident_blocks, shape_problems
from gptoss_builder.plan.schema import LaunchConfig


def triton_module() -> ModuleType:
    """Load the kernel's module, which needs Triton.

    Raises:
        MissingTritonError: Triton is not installed.
    """
    try:
        return importlib.import_module("gptoss_builder.kernels.w1w3_triton")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise MissingTritonError(
            "dispatch triton_grouped needs Triton, which is not installed here and is for Linux "
            f"only; {install('train')}, or set model.moe.dispatch: stacked"
        ) from error


def encode_launch(launch: LaunchConfig | None) -> tuple[int, ...]:
    """Write a launch configuration as the integers that an op can take; () for None.

    The last is the programs a multiprocessor of a persistent launch, 0 for one program a tile.

    Raises:
        LaunchError: a configuration that Triton takes on no card.
    """
    if launch is None:
        return ()
    if problems := shape_problems(launch):
        raise LaunchError(f"launch: {'; '.join(problems)}")
    return (
        launch.block_t,
        launch.block_k,
        launch.block_n,
        launch.num_warps,
        launch.num_stages,
        int(launch.loads == "descriptors"),
        resident_blocks(launch) if launch.persistent else 0,
    )


def _fake_triton_up(
    x_TD: Tensor,
    w13_EFD: Tensor,
    _: Tensor,
    rows_R: Tensor | None,
    launch: Sequence[int],
    write_h: bool,
    write_gate_up: bool,
) -> tuple[Tensor, Tensor]:
    rows = x_TD.shape[0] if rows_R is None else rows_R.shape[0]
    double_ff = w13_EFD.shape[1]
    return (
        x_TD.new_empty(rows, double_ff // 2) if write_h else x_TD.new_empty(0),
        x_TD.new_empty(rows, double_ff) if write_gate_up else x_TD.new_empty(0),
    )


@opaque(_fake_triton_up)
def triton_up(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    launch: Sequence[int],
    write_h: bool,
    write_gate_up: bool,
) -> tuple[Tensor, Tensor]:
    """Run the Triton kernel: h `[R, F]`, gate and up `[R, 2F]`; one not written is empty."""
    h_RF, gate_up_RF = triton_module().launch_up(
        x_TD,
        w13_EFD,
        offsets_E,
        rows_R,
        launch,
        write_h=write_h,
        write_gate_up=write_gate_up,
    )
    return h_RF, gate_up_RF


def _fake_triton_activation_backward(
    gate_up_RF: Tensor, dgate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None
) -> Tensor:
    return dh_RF.new_empty(dh_RF.shape[0], dtype=accurate_dtype(dh_RF.dtype))


@opaque(_fake_triton_activation_backward, mutates=("dgate_up_RF", "dh_RF"))
def triton_activation_backward(
    gate_up_RF: Tensor, dgate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None
) -> Tensor:
    """Backward of `scale · silu(gate) · up` in one pass over memory.

    Args:
        gate_up_RF: `[R, 2F]`, gate columns first.
        dgate_up_RF: receives the gradient of gate and up; may be `gate_up_RF`.
        dh_RF: gradient of the scaled product; receives the scaled product.
        scale_R: weight of each row; None for 1.

    Returns:
        Gradient of the scale, fp32.
    """
    dscale_R: Tensor = triton_module().launch_activation_backward(
        gate_up_RF, dgate_up_RF, dh_RF, scale_R
    )
    return dscale_R


def up_forward(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    up: str,
    launch: Sequence[int],
    *,
    save: bool,
    compiled: bool,
) -> tuple[Tensor, Tensor]:
    """Compute h `[R, F]` and, with `save`, gate and up `[R, 2F]` (else an empty tensor)."""
    launches[f"up:{up}"] += 1
    if up == "triton":
        return triton_up(x_TD, w13_EFD, offsets_E, rows_R, launch, True, save)
    gate_up_RF = rows_product(gather(x_TD, rows_R), w13_EFD.transpose(1, 2), offsets_E, up)
    h_RF = silu_mul(gate_up_RF, compiled)
    return h_RF, gate_up_RF if save else x_TD.new_empty(0)


def up_gate_up(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    up: str,
    launch: Sequence[int],
) -> Tensor:
    """Compute gate and up `[R, 2F]` again, by what computed them in the forward."""
    launches[f"up:{up}"] += 1
    if up == "triton":
        return triton_up(x_TD, w13_EFD, offsets_E, rows_R, launch, False, True)[1]
    return rows_product(gather(x_TD, rows_R), w13_EFD.transpose(1, 2), offsets_E, up)


def activation_backward(
    gate_up_RF: Tensor,
    dh_RF: Tensor,
    scale_R: Tensor | None,
    elementwise: str,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of `scale · silu(gate) · up`; `dh_RF` may be overwritten.

    Args:
        gate_up_RF: `[R, 2F]`; overwritten unless `keep`.
        dh_RF: gradient of the scaled product, contiguous.
        scale_R: weight of each row; None for 1.
        elementwise: who makes the kernel, as in `experts.How`.
        keep: leave `gate_up_RF` as it is.

    Returns:
        Gradient of gate and up; the scaled product; gradient of the scale.
    """
    if elementwise != "triton":
        return silu_mul_backward(gate_up_RF, dh_RF, scale_R, elementwise == "compiled")
    dgate_up_RF = torch.empty_like(gate_up_RF) if keep else gate_up_RF
    dscale_R = triton_activation_backward(gate_up_RF, dgate_up_RF, dh_RF, scale_R)
    return dgate_up_RF, dh_RF, dscale_R


def up_backward(
    dgate_up_RF: Tensor,
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    products: str,
    *,
    needs_x: bool,
    needs_w13: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows `[R, D]` and of w13; one that is not needed is empty."""
    empty = x_TD.new_empty(0)
    dw13_EFD = (
        weights_product(dgate_up_RF, gather(x_TD, rows_R), offsets_E, products)
        if needs_w13
        else empty
    )
    dx_RD = rows_product(dgate_up_RF, w13_EFD, offsets_E, products) if needs_x else empty
    return dx_RD, dw13_EFD


def gather(x_TD: Tensor, rows_R: Tensor | None) -> Tensor:
    """The rows of `x_TD`, or `x_TD` itself; contiguous either way, as grouped_mm wants it."""
    return x_TD.contiguous() if rows_R is None else x_TD.index_select(0, rows_R)
