from __future__ import annotations

import pytest
import torch

from gptoss_builder.model.norm import RMSNorm, rms_norm
from tests.tolerances import assert_close


def plain(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 63), (65, 24), (0, 8)])
def test_value_and_true_gradient_equal_autograd_of_the_formula(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape[-1], dtype=torch.float64, requires_grad=True)
    grad = torch.randn(shape, dtype=torch.float64)
    ours = torch.autograd.grad(rms_norm(x, weight, 1e-2), (x, weight), grad)
    exact = torch.autograd.grad(plain(x, weight, 1e-2), (x, weight), grad)
    assert_close(rms_norm(x, weight, 1e-2), plain(x, weight, 1e-2))
    for actual, expected in zip(ours, exact, strict=True):
        assert_close(actual, expected)


def test_bf16_input_has_fp32_statistics_and_an_fp32_weight_gradient() -> None:
    x = (100 * torch.randn(7, 1000)).bfloat16().requires_grad_()
    norm = RMSNorm(1000, 1e-5)
    torch.nn.init.normal_(norm.weight)
    y = norm(x)
    assert y.dtype == torch.bfloat16
    y.backward(torch.ones_like(y))
    exact_x = x.detach().double().requires_grad_()
    exact_weight = norm.weight.detach().double().requires_grad_()
    plain(exact_x, exact_weight, 1e-5).sum().backward()
    assert (x.grad.dtype, norm.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    assert_close(y, plain(exact_x, exact_weight, 1e-5))
    assert_close(x.grad, exact_x.grad)
    assert_close(norm.weight.grad, exact_weight.grad)


def test_only_the_input_the_weight_and_one_number_a_row_are_kept() -> None:
    x = torch.randn(6, 32).bfloat16().requires_grad_()
    kept: list[int] = []
    norm = RMSNorm(32, 1e-5)
    torch.nn.init.ones_(norm.weight)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.nbytes) or tensor, lambda tensor: tensor
    ):
        norm(x)
    assert sorted(kept) == sorted([x.nbytes, norm.weight.nbytes, 6 * 4])


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_compiled_it_has_the_same_gradients(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 8).to(dtype).requires_grad_()
    weight = torch.randn(8, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
    grad = torch.randn(3, 5, 8).to(dtype)
    compiled = torch.compile(rms_norm, fullgraph=True, dynamic=False, backend="eager")
    ours, eager = (
        torch.autograd.grad(function(x, weight, 1e-2), (x, weight), grad)
        for function in (compiled, rms_norm)
    )
    for actual, expected in zip(ours, eager, strict=True):
        assert torch.equal(actual, expected)


def test_a_frozen_weight_leaves_the_input_gradient() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    norm = RMSNorm(8, 1e-5).requires_grad_(False)
    torch.nn.init.ones_(norm.weight)
    norm(x).sum().backward()
    assert norm.weight.grad is None
    assert x.grad.isfinite().all()
