"""Largest errors that a right implementation makes, by dtype: the one table of the tests.

Relative is the norm of the difference over the norm of the exact result; a right bf16 kernel
makes 1.7e-3 against fp64 (measured on an H200), and twice that where the other side is bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor

RELATIVE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 6e-3,
}
ATTENTION_GRADIENT = 1.2e-2
"""bf16 gradients of fused attention: they come from the difference of dp and rowsum(do·o), with o
rounded to bf16, so little is left of short rows (6.6e-3 seen on an H200 in right kernels)."""


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of `exact`, in fp64; NaN if either has one."""
    exact_64 = exact.detach().double()
    actual_64 = actual.detach().double().to(exact_64.device)
    if exact_64.shape != actual_64.shape:
        raise AssertionError(f"shape {list(actual.shape)}, expected {list(exact.shape)}")
    difference = torch.linalg.vector_norm(actual_64 - exact_64)
    norm = torch.linalg.vector_norm(exact_64)
    return float(difference / norm) if norm else float(difference)


def assert_close(
    actual: Tensor,
    exact: Tensor,
    dtype: torch.dtype | None = None,
    *,
    name: str = "result",
    limit: float | None = None,
) -> None:
    """Fail unless `actual` is as near to `exact` as its dtype (or `dtype`, or `limit`) allows."""
    error = relative_error(actual, exact)
    limit = RELATIVE[dtype or actual.dtype] if limit is None else limit
    # A NaN compares false, so it fails here too.
    assert error <= limit, f"{name}: relative error {error:.2e}, at most {limit:.0e} is right"
