"""Every size of a small table, values and gradients, in memory that was NaN before."""

from __future__ import annotations

import pytest
import torch

from gptoss_builder.errors import InputError
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from tests.kernels.rows import inputs, launch
from tests.tolerances import assert_close

SIZES = [(8, 24), (24, 1000), (72, 72), (1000, 8), (100, 36), (36, 100)]
LARGE = [(1000, 2880), (2880, 1000)]
COUNTS = [[0, 0, 0], [0, 0, 1], [0, 63, 0], [65, 0, 1], [1000, 0, 7]]
"""Rows of each expert: none, one, one short of a tile and one past it, empty at both ends."""


def compare(
    kind: str, counts: list[int], sizes: tuple[int, int], backward: str, device: str
) -> None:
    bf16 = kind == "grouped_mm"
    dtype = torch.bfloat16 if bf16 else torch.float32
    x, w13, ends = inputs(counts, *sizes, dtype=dtype, device=device)
    h = w1w3(
        x,
        w13,
        ends,
        implementation=kind,
        launch=launch(64, 64, 64),
        backward=backward,
        products="grouped_mm" if bf16 else "loop",
    )
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w13))
    exact = w1w3_reference(x64, w64, ends)
    dh = torch.randn_like(h)
    ours = (h, *torch.autograd.grad(h, (x, w13), dh))
    theirs = (exact, *torch.autograd.grad(exact, (x64, w64), dh.double()))
    for name, actual, expected in zip(("h", "dx", "dw13"), ours, theirs, strict=True):
        assert_close(actual, expected, name=f"{name} of {counts} rows, {backward}")


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    "sizes", [*SIZES, *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in LARGE)], ids=str
)
@pytest.mark.parametrize("kind", ["loop", "grouped_mm"])
def test_loop_and_grouped_products_are_right_at_every_size(kind, sizes):
    if kind == "grouped_mm" and any(size % 8 for size in sizes):
        with pytest.raises(InputError, match=r"multiples of 8 and got (100|36).*stacked"):
            compare(kind, COUNTS[3], sizes, "save", "cpu")
        return
    for number, counts in enumerate(COUNTS):
        compare(kind, counts, sizes, ("recompute", "save")[number % 2], "cpu")


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernel_is_right_at_every_size(sizes, device):
    few = COUNTS if device == "cuda" else COUNTS[:-1]  # the interpreter takes 20 ms a program
    for number, counts in enumerate(few):
        compare("triton", counts, sizes, ("save", "recompute")[number % 2], device)
