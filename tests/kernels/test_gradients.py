"""Gradients of the op: sums over gathered rows, the same bits twice, and none of a gradient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gptoss_builder.errors import InputError
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from tests.kernels.rows import inputs, launch, offsets
from tests.tolerances import assert_close

ROWS, TOKENS = 5000, 7


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_of_many_rows_gets_their_sum_in_fp32(dtype, device):
    x, w13, _ = inputs([TOKENS, 0], 64, 8, dtype=dtype, device=device)
    ends = offsets([ROWS // 2, ROWS // 2], device)
    rows = torch.randint(TOKENS, (ROWS,)).to(device)
    h = w1w3(x, w13, ends, implementation="loop", rows_R=rows)
    dh = torch.randn_like(h)
    (dx,) = torch.autograd.grad(h, x, dh)
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w13))
    exact = w1w3_reference(x64, w64, ends, rows)
    assert_close(dx, torch.autograd.grad(exact, x64, dh.double())[0])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathered_rows_give_the_same_bits_on_several_threads(dtype, device):
    x, w13, _ = inputs([TOKENS, 0], 64, 8, dtype=dtype, device=device)
    rows = torch.randint(TOKENS, (ROWS,)).to(device)
    dh = torch.randn(ROWS, 8, dtype=dtype, device=device)

    def run():
        ends = offsets([ROWS // 2, ROWS // 2], device)
        h = w1w3(x, w13, ends, implementation="loop", rows_R=rows)
        return torch.autograd.grad(h, (x, w13), dh)

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


@pytest.mark.parametrize("backward", ["recompute", "save"])
@pytest.mark.parametrize("implementation", ["loop", "grouped_mm", "triton"])
def test_a_second_derivative_is_refused_and_the_first_is_not(implementation, backward, device):
    grouped = implementation == "grouped_mm"
    if grouped and device == "cuda":
        pytest.skip("in tests/gpu")
    dtype = torch.bfloat16 if grouped else torch.float32
    x, w13, ends = inputs([5, 0, 7], 24, 8, dtype=dtype, device=device)

    def first(create_graph: bool):
        h = w1w3(
            x,
            w13,
            ends,
            implementation=implementation,
            launch=launch(),
            backward=backward,
            products="grouped_mm" if grouped else "loop",
        )
        return torch.autograd.grad(h.square().sum(), (x, w13), create_graph=create_graph)

    plain, again = first(False), first(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    with pytest.raises(InputError, match="w1w3_op has no second derivative"):
        torch.autograd.grad(again[0].square().sum(), w13)
    # linear in h, so that the gradient of h is a constant: it still depends on the weights
    h = w1w3(x, w13, ends, implementation=implementation, launch=launch())
    (dx,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    with pytest.raises(InputError, match="no second derivative"):
        (dx.sum() + w13.sum()).backward()
