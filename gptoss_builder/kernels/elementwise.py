"""The elementwise work between the products: the gated activation and the weighted sum.

Arithmetic is in fp32 (fp64 for fp64). On a GPU each function is one kernel made by
`torch.compile`, on a CPU it is plain PyTorch; behind an op either way, so that a caller sees
the outputs and no temporaries.
"""

# R rows sorted by expert, F hidden width of an expert, T tokens, K choices of a token, D width

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


@torch.library.custom_op("gptoss::silu_mul", mutates_args=())
def silu_mul(gate_up_RF: Tensor) -> Tensor:
    """Compute `silu(gate) · up` of `[R, 2F]` rows, gate columns first; returns `[R, F]`."""
    return _run(_silu_mul, gate_up_RF)  # type: ignore[no-any-return]  # compiled: untyped


@silu_mul.register_fake
def _(gate_up_RF: Tensor) -> Tensor:
    return gate_up_RF.new_empty(gate_up_RF.shape[0], gate_up_RF.shape[1] // 2)


def _silu_mul(gate_up_RF: Tensor) -> Tensor:
    gate_RF, up_RF = _accurate(gate_up_RF).chunk(2, dim=1)
    return (gate_RF * torch.sigmoid(gate_RF) * up_RF).to(gate_up_RF.dtype)


@torch.library.custom_op("gptoss::silu_mul_backward", mutates_args=("gate_up_RF", "dh_RF"))
def silu_mul_backward_(gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None) -> Tensor:
    """Backward of `scale · silu(gate) · up`, in place of its inputs.

    Args:
        gate_up_RF: `[R, 2F]`, becomes its own gradient.
        dh_RF: `[R, F]`, gradient of the scaled product; becomes `scale · silu(gate) · up`.
        scale_R: weight of each row; None for 1.

    Returns:
        Gradient of `scale_R`, `[R]` in fp32 (fp64 for fp64).
    """
    return _run(_silu_mul_backward, gate_up_RF, dh_RF, scale_R)  # type: ignore[no-any-return]  # compiled: untyped


@silu_mul_backward_.register_fake
def _(gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None) -> Tensor:
    return gate_up_RF.new_empty(gate_up_RF.shape[0], dtype=_accurate_dtype(gate_up_RF.dtype))


def _silu_mul_backward(gate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None) -> Tensor:
    gate_RF, up_RF = _accurate(gate_up_RF).chunk(2, dim=1)
    dout_RF = _accurate(dh_RF)
    sigmoid_RF = torch.sigmoid(gate_RF)
    silu_RF = gate_RF * sigmoid_RF
    h_RF = silu_RF * up_RF
    dscale_R = (h_RF * dout_RF).sum(1)
    if scale_R is not None:
        dout_RF = dout_RF * scale_R[:, None]
        h_RF = h_RF * scale_R[:, None]
    dgate_RF = dout_RF * up_RF * (sigmoid_RF + silu_RF * (1 - sigmoid_RF))
    dup_RF = dout_RF * silu_RF
    dh_RF.copy_(h_RF)
    gate_up_RF.copy_(torch.cat([dgate_RF, dup_RF], dim=1))
    return dscale_R


@torch.library.custom_op("gptoss::combine", mutates_args=())
def combine(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    """Sum each token's rows, found by gathering: no atomics, so the same bits every time.

    Args:
        y_RD: rows sorted by expert.
        position_TK: the row of each of a token's choices.
        weight_TK: weight of each choice; None for 1.

    Returns:
        `[T, D]` of the dtype of `y_RD`.
    """
    return _run(_combine, y_RD, position_TK, weight_TK)  # type: ignore[no-any-return]  # compiled: untyped


@combine.register_fake
def _(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    return y_RD.new_empty(position_TK.shape[0], y_RD.shape[1])


def _combine(y_RD: Tensor, position_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    total_TD = y_RD.new_zeros(
        position_TK.shape[0], y_RD.shape[1], dtype=_accurate_dtype(y_RD.dtype)
    )
    for choice in range(position_TK.shape[1]):
        row_TD = _accurate(y_RD[position_TK[:, choice]])
        if weight_TK is not None:
            row_TD = row_TD * weight_TK[:, choice, None]
        total_TD = total_TD + row_TD
    return total_TD.to(y_RD.dtype)


def _accurate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _accurate(x: Tensor) -> Tensor:
    return x.to(_accurate_dtype(x.dtype))


def _run(function: Function, first: Tensor, *rest: Tensor | None) -> Any:
    with torch.no_grad():
        if not first.is_cuda or first.numel() == 0:
            return function(first, *rest)
        torch._dynamo.maybe_mark_dynamic(first, 0)
        for tensor in rest:
            if tensor is not None:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        widths = tuple(None if t is None else (t.dtype, *t.shape[1:]) for t in (first, *rest))
        return _compiled(function, widths)(first, *rest)


@functools.cache
def _compiled(function: Function, widths: tuple[object, ...]) -> Function:
    # Row counts are dynamic, widths static: a width that the compiler does not know costs it the
    # wide loads. Dynamo counts its recompiles by code object, so each set of widths gets a copy.
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__
    )
    return torch.compile(copy, fullgraph=True)
