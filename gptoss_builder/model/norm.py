"""RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467) with its true gradient.

Legend: D normalised width; `...` any leading dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that statistics are computed in: fp32, or fp64 for an fp64 input."""
    return torch.promote_types(dtype, torch.float32)


class _RMSNorm(torch.autograd.Function):
    """Keeps the input and one reciprocal a row, where plain autograd keeps four wide copies."""

    @staticmethod
    def forward(ctx: Any, x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        wide_D = x_D.to(wide_dtype(x_D.dtype))
        rstd_1 = torch.rsqrt(wide_D.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x_D, weight_D, rstd_1)
        out_D = wide_D * rstd_1 * weight_D
        # what torch 2.11 compiles has a gradient of zero where a function returns a cast that
        # changes nothing
        return out_D if out_D.dtype == x_D.dtype else out_D.to(x_D.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_D: Tensor) -> tuple[Tensor, Tensor, None]:
        x_D, weight_D, rstd_1 = ctx.saved_tensors
        unit_D = x_D.to(rstd_1.dtype) * rstd_1
        wide_D = grad_D.to(rstd_1.dtype)
        unit_grad_D = wide_D * weight_D
        along_1 = (unit_grad_D * unit_D).mean(-1, keepdim=True)
        x_grad_D = rstd_1 * (unit_grad_D - unit_D * along_1)
        weight_grad_D = (wide_D * unit_D).flatten(0, -2).sum(0)
        return x_grad_D.to(x_D.dtype), weight_grad_D.to(weight_D.dtype), None


def rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · weight` over the last dimension, in fp32, then x's dtype."""
    out_D: Tensor = _RMSNorm.apply(x_D, weight_D, eps)  # type: ignore[no-untyped-call]  # torch
    return out_D


class RMSNorm(nn.Module):
    """`rms_norm` with a learned `weight` [D]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise `x` [..., D]; the result has the shape and dtype of `x`."""
        return rms_norm(x_D, self.weight, self.eps)
