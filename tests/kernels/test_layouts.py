"""The op and the products read any layout of their tensors, and NaN beside them stays out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gptoss_builder.errors import InputError
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from tests.kernels.rows import inputs, launch
from tests.tolerances import assert_close


def every_other(x: Tensor, between: float) -> Tensor:
    """`x` again, with `between` after each of its elements in memory."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), between, dtype=x.dtype, device=x.device)
    wide[..., ::2] = x
    return wide[..., ::2]


@pytest.mark.parametrize("implementation", ["loop", "grouped_mm", "triton"])
def test_offsets_and_rows_may_have_any_stride(implementation, device):
    if implementation == "grouped_mm" and device == "cuda":
        pytest.skip("in tests/gpu")
    dtype = torch.bfloat16 if implementation == "grouped_mm" else torch.float32
    x, w13, ends = (t.detach() for t in inputs([5, 0, 7], 24, 8, dtype=dtype, device=device))
    rows = torch.arange(12, device=device).flip(0)
    for index in (None, rows):
        h = w1w3(
            x,
            w13,
            every_other(ends, 2**20),
            implementation=implementation,
            launch=launch(),
            rows_R=None if index is None else every_other(index, 2**40),
        )
        assert_close(h, w1w3_reference(x.double(), w13.double(), ends, index))


def padded(w: Tensor) -> Tensor:
    wide = torch.full((*w.shape[:-1], w.shape[-1] + 1), torch.nan, dtype=w.dtype)
    wide[..., :-1] = w
    return wide[..., :-1]


def moved(w: Tensor) -> Tensor:
    return torch.cat([w.new_full((1,), torch.nan), w.flatten()])[1:].view_as(w)


LAYOUTS = {
    "rows of 25": padded,
    "every other element": lambda w: every_other(w, torch.nan),
    "from byte 2": moved,
    "transposed": lambda w: w.transpose(-2, -1).contiguous().transpose(-2, -1),
    "one matrix for all": lambda w: w[:1].expand(w.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("counts", [[5, 0, 7], [1, 0, 0]])
def test_grouped_products_take_weights_and_rows_of_any_layout(layout, counts):
    """torch's own kernel raises unless strides and start are multiples of 16 bytes."""
    x, w13, ends = (t.detach() for t in inputs(counts, 24, 8, dtype=torch.bfloat16))
    x, w13 = LAYOUTS[layout](x), LAYOUTS[layout](w13)
    x.requires_grad_()
    w13.requires_grad_()
    h = w1w3(x, w13, ends, implementation="grouped_mm", products="grouped_mm")
    plain = w1w3(x, w13, ends, implementation="loop")
    assert_close(h, plain)
    dh = torch.randn_like(h)
    ours, theirs = (torch.autograd.grad(out, (x, w13), dh) for out in (h, plain))
    for gradient, expected in zip(ours, theirs, strict=True):
        assert_close(gradient, expected)


def test_more_experts_than_torch_has_groups_for_are_refused_by_number():
    x, w13, ends = (t.detach() for t in inputs([1] * 1024, 8, 8, dtype=torch.bfloat16))
    with pytest.raises(InputError, match=r"at most 1023 experts and got 1024.*stacked"):
        w1w3(x, w13, ends, implementation="grouped_mm")
    few = ends[:1023]
    assert w1w3(x[:1023], w13[:1023], few, implementation="grouped_mm").isfinite().all()


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("counts", "d_model", "d_ff"),
    [
        ([0] * 999 + [3], 8, 8),  # one chunk of offsets, all but the last expert empty
        ([1, *[0] * 1030, 2, 0], 8, 8),  # two chunks, empty at the end
        ([0, 0, 65, 0, 1, 0], 40, 24),
        ([1], 1, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernel_finds_its_expert_among_any_number(counts, d_model, d_ff, dtype, device):
    x, w13, ends = (t.detach() for t in inputs(counts, d_model, d_ff, dtype=dtype, device=device))
    exact = w1w3_reference(x.double(), w13.double(), ends)
    for persistent in (False, True):
        config = launch(persistent=persistent)
        assert_close(w1w3(x, w13, ends, implementation="triton", launch=config), exact)
