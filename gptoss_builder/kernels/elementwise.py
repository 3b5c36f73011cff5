"""The elementwise work between the products: the gated activation and the weighted sum.

Arithmetic is in fp32 (fp64 for fp64). With `compiled`, `torch.compile` makes the kernels on a GPU;
without, and on a CPU, it is plain PyTorch, a few rows at a time. Behind an op either way: a caller
sees the outputs, and temporaries stay small. Those of plain PyTorch count in a plan's memory, so
each is dropped, or written over where it is ours, as soon as it has been used.
"""

# R rows sorted by expert, F hidden width of an expert, T tokens, K choices of a token, D width

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from gptoss_builder.kernels.opaque import opaque

Function = Callable[..., Any]
CHUNK = 2**23
"""Elements of one temporary in plain PyTorch."""


def accurate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def _fake_silu_mul(gate_up_RF: Tensor, _: bool) -> Tensor:
    return gate_up_RF.new_empty(gate_up_RF.shape[0], gate_up_RF.shape[1] // 2)


@opaque(_fake_silu_mul)
def silu_mul(gate_up_RF: Tensor, compiled: bool) -> Tensor:
    """Compute `silu(gate) · up` of `[R, 2F]` rows, gate columns first; returns `[R, F]`."""
    if compiled and gate_up_RF.is_cuda:
        return cast(Tensor, run_compiled(_silu_mul, gate_up_RF))
    return _plain_silu_mul(gate_up_RF)


def _plain_silu_mul(gate_up_RF: Tensor) -> Tensor:
    h_RF = _fake_silu_mul(gate_up_RF, False)
    for rows in _chunks(*h_RF.shape):
        h_RF[rows] = _silu_mul(gate_up_RF[rows])
    return h_RF


def _silu_mul(gate_up_RF: Tensor) -> Tensor:
    gate_RF, up_RF = _accurate(gate_up_RF).chunk(2, dim=1)
    return torch.sigmoid(gate_RF).mul_(gate_RF).mul_(up_RF).to(gate_up_RF.dtype)


def _fake_silu_mul_backward(
    gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None, _compiled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dscale = dh_RF.new_empty(
        0 if scale_R is None else dh_RF.shape[0], dtype=accurate_dtype(dh_RF.dtype)
    )
    return gate_up_RF.new_empty(gate_up_RF.shape), dh_RF.new_empty(dh_RF.shape), dscale


@opaque(_fake_silu_mul_backward)
def silu_mul_backward(
    gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None, compiled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of `scale · silu(gate) · up`.

    Args:
        gate_up_RF: `[R, 2F]`, gate columns first.
        dh_RF: `[R, F]`, gradient of the scaled product.
        scale_R: weight of each row; None for 1.
        compiled: let `torch.compile` make the kernel on a GPU.

    Returns:
        Gradient of gate and up `[R, 2F]`; the scaled product `[R, F]`; gradient of the scale,
        `[R]` in fp32 (fp64 for fp64), empty where there is none.
    """
    if compiled and dh_RF.is_cuda:
        return cast(
            tuple[Tensor, Tensor, Tensor],
            run_compiled(_silu_mul_backward, gate_up_RF, dh_RF, scale_R),
        )
    return _plain_silu_mul_backward(gate_up_RF, dh_RF, scale_R)


def _plain_silu_mul_backward(
    gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dgate_up_RF, h_RF, dscale_R = _fake_silu_mul_backward(gate_up_RF, dh_RF, scale_R, False)
    for rows in _chunks(*dh_RF.shape):
        scale = None if scale_R is None else scale_R[rows]
        # unnamed, so that a chunk's results are gone before the next chunk begins
        dgate_up_RF[rows], h_RF[rows], dscale_R[rows] = _silu_mul_backward(
            gate_up_RF[rows], dh_RF[rows], scale
        )
    return dgate_up_RF, h_RF, dscale_R


def _silu_mul_backward(
    gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gate_RF, up_RF = _accurate(gate_up_RF).chunk(2, dim=1)
    dout_RF = _accurate(dh_RF)
    sigmoid_RF = torch.sigmoid(gate_RF)
    silu_RF = gate_RF * sigmoid_RF
    h_RF = silu_RF * up_RF
    dscale_R = dout_RF.new_empty(0)
    if scale_R is not None:
        dscale_R = (h_RF * dout_RF).sum(1)
        dout_RF = dout_RF * scale_R[:, None]
        h_RF.mul_(scale_R[:, None])
    h_RF = h_RF.to(dh_RF.dtype)
    dgate_RF = (1 - sigmoid_RF).mul_(silu_RF).add_(sigmoid_RF)
    del sigmoid_RF
    dup_RF = (dout_RF * silu_RF).to(dh_RF.dtype)
    del silu_RF
    dgate_RF = dgate_RF.mul_(dout_RF * up_RF).to(dh_RF.dtype)
    return torch.cat([dgate_RF, dup_RF], dim=1), h_RF, dscale_R


def _fake_combine(
    y_RD: Tensor, position_TK: Tensor, _weight_TK: Tensor | None, _compiled: bool
) -> Tensor:
    return y_RD.new_empty(position_TK.shape[0], y_RD.shape[1])


@opaque(_fake_combine)
def combine(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None, compiled: bool) -> Tensor:
    """Sum each token's rows, found by gathering: no atomics, so the same bits every time.

    Args:
        y_RD: rows sorted by expert.
        position_TK: the row of each of a token's choices.
        weight_TK: weight of each choice; None for 1.
        compiled: let `torch.compile` make the kernel on a GPU.

    Returns:
        `[T, D]` of the dtype of `y_RD`.
    """
    if compiled and y_RD.is_cuda:
        return cast(Tensor, run_compiled(_combine, y_RD, position_TK, weight_TK))
    return _plain_combine(y_RD, position_TK, weight_TK)


def _plain_combine(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    y_TD = _fake_combine(y_RD, position_TK, weight_TK, False)
    for tokens in _chunks(*y_TD.shape):
        weight = None if weight_TK is None else weight_TK[tokens]
        y_TD[tokens] = _combine(y_RD, position_TK[tokens], weight)
    return y_TD


def _combine(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    total_TD = y_RD.new_zeros(position_TK.shape[0], y_RD.shape[1], dtype=accurate_dtype(y_RD.dtype))
    for choice in range(position_TK.shape[1]):
        row_TD = _accurate(y_RD[position_TK[:, choice]])
        if weight_TK is not None:
            row_TD.mul_(weight_TK[:, choice, None])
        total_TD.add_(row_TD)
        del row_TD
    return total_TD.to(y_RD.dtype)


PLAIN: dict[str, Function] = {
    "gptoss::silu_mul": _plain_silu_mul,
    "gptoss::silu_mul_backward": _plain_silu_mul_backward,
    "gptoss::combine": _plain_combine,
}
"""What an op runs in plain PyTorch, without its last argument: a memory count under fake tensors
runs this in place of the op."""


def _accurate(x: Tensor) -> Tensor:
    return x.to(accurate_dtype(x.dtype))


def _chunks(rows: int, width: int) -> Iterator[slice]:
    step = max(CHUNK // max(width, 1), 1)
    return (slice(start, start + step) for start in range(0, rows, step))


def run_compiled(function: Function, *tensors: Tensor | None) -> Any:
    """Run a function of tensors on a GPU through `torch.compile`, outside of autograd."""
    # what wants a gradient and what does not would be compiled apart: training and evaluation
    tensors = tuple(None if tensor is None else tensor.detach() for tensor in tensors)
    with torch.no_grad():
        if any(tensor is not None and tensor.numel() == 0 for tensor in tensors):
            return function(*tensors)
        widths = tuple(None if t is None else (t.dtype, *t.shape[1:]) for t in tensors)
        return _compile(function, widths)(*tensors)


@functools.cache
def _compile(function: Function, widths: tuple[object, ...]) -> Function:
    # Dynamo compiles the first shape as it is and, when row counts change, once more for any: on
    # an H200 the kernel for any count takes up to four times as long. It counts its recompiles by
    # code object, so each set of widths gets a copy.
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return torch.compile(copy, fullgraph=True)
