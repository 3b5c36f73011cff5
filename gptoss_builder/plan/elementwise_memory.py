"""Temporaries of the experts' elementwise work where it is plain PyTorch, in chunks of rows.

kernels/elementwise.py drops each as soon as it has been used. What is left at the worst point,
in bytes for an element of a chunk, stands here; a test counts it in the code itself.
"""

from __future__ import annotations

from gptoss_builder.plan.sizes import Sizes

CHUNK = 2**23
"""`kernels.elementwise.CHUNK`: elements of a temporary of plain PyTorch."""
ACTIVATION = {True: 14, False: 4}
"""`silu_mul`, in bf16 and in fp32, which needs no wider copies."""
BACKWARD = {True: 28, False: 24}
"""`silu_mul_backward` with weights of the rows."""
BACKWARD_UNSCALED = {True: 28, False: 20}
"""The same without, as for the shared experts."""
COMBINE = {True: 10, False: 8}
"""`combine`, forward and backward."""


def activation_bytes(size: Sizes, rows: int, width: int) -> int:
    """Temporaries of the activation of `[rows, width]` hidden rows."""
    return _bytes(size, rows, width, ACTIVATION)


def activation_backward_bytes(size: Sizes, rows: int, width: int, *, scaled: bool) -> int:
    """Temporaries of its backward; `scaled` where rows have weights."""
    return _bytes(size, rows, width, BACKWARD if scaled else BACKWARD_UNSCALED)


def combine_bytes(size: Sizes) -> int:
    """Temporaries of the sum of each token's rows."""
    return _bytes(size, size.tokens, size.d_model, COMBINE)


def _bytes(size: Sizes, rows: int, width: int, each: dict[bool, int]) -> int:
    if not size.plain:
        return 0
    return min(rows, max(CHUNK // width, 1)) * width * each[size.low]
