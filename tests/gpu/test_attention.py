"""Fused attention on a GPU against the explicit softmax in fp64, values and all gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from gptoss_builder.model.attention_fused import attend_cudnn, attend_flash
from gptoss_builder.model.attention_math import attend_math
from tests.tolerances import ATTENTION_GRADIENT, assert_close

pytestmark = pytest.mark.gpu

HEADS = {"multi-head": (4, 4), "grouped": (8, 2), "one key head": (6, 1)}
CASES = list(itertools.product(HEADS, (64, 96, 128)))


def inputs(length: int, heads: str, head_dim: int, keys: int | None = None) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(length + head_dim)
    query_heads, kv_heads = HEADS[heads]
    keys = keys or length
    shapes = [
        (2, length, query_heads, head_dim),
        (2, keys, kv_heads, head_dim),
        (2, keys, kv_heads, head_dim),
        (query_heads,),
    ]
    dtypes = [torch.bfloat16] * 3 + [torch.float32]
    return [
        torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_()
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def compare(attend, window: int | None, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None):
    """Against fp64 maths on the same bf16 values."""
    leaves = [leaf for leaf in (q, k, v, sink) if leaf is not None]
    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = attend_math(*exact_leaves[:3], exact_leaves[3] if sink is not None else None, window)
    out = attend(q, k, v, sink)
    assert (out.dtype, out.shape) == (q.dtype, q.shape)
    assert_close(out, exact)
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, leaves, grad)
    expected = torch.autograd.grad(exact, exact_leaves, grad.double())
    for name, leaf, actual, right in zip(
        ("q", "k", "v", "sink"), leaves, ours, expected, strict=False
    ):
        assert actual.dtype == leaf.dtype
        assert_close(actual, right, limit=ATTENTION_GRADIENT, name=f"gradient of {name}")


@pytest.mark.parametrize(("heads", "head_dim"), CASES)
@pytest.mark.parametrize("length", [1, 63, 65, 1000])
def test_flash_full(length: int, heads: str, head_dim: int) -> None:
    compare(lambda *x: attend_flash(*x, None), None, *inputs(length, heads, head_dim))


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("length", [1, 63, 65, 1000])
@pytest.mark.parametrize("window", ["1", "3", "128", "T", "T + 1"])
def test_flash_windows(length: int, window: str, head_dim: int) -> None:
    size = {"T": length, "T + 1": length + 1}.get(window) or int(window)
    compare(lambda *x: attend_flash(*x, size), size, *inputs(length, "grouped", head_dim))


@pytest.mark.parametrize(("heads", "head_dim"), CASES)
@pytest.mark.parametrize("length", [63, 65, 1000])
def test_cudnn_full(length: int, heads: str, head_dim: int) -> None:
    compare(attend_cudnn, None, *inputs(length, heads, head_dim))


@pytest.mark.parametrize("attend", [lambda *x: attend_flash(*x, None), attend_cudnn])
def test_without_sinks(attend) -> None:
    compare(attend, None, *inputs(65, "grouped", 96)[:3], None)


@pytest.mark.parametrize("attend", [lambda *x: attend_flash(*x, 16), attend_cudnn])
@pytest.mark.parametrize("logit", [-50.0, 50.0])
def test_extreme_sinks_stay_finite(attend, logit: float) -> None:
    q, k, v, _ = inputs(65, "grouped", 64)
    sink = torch.full((8,), logit, device="cuda", requires_grad=True)
    out = attend(q, k, v, sink)
    grads = torch.autograd.grad(out, (q, k, v, sink), torch.ones_like(out))
    assert all(tensor.isfinite().all() for tensor in (out, *grads))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (1, 700), (5, 9), (63, 1000)])
@pytest.mark.parametrize("window", [None, 3, 128])
def test_flash_puts_the_last_query_at_the_last_key(
    queries: int, keys: int, window: int | None
) -> None:
    q, k, v, sink = (leaf.detach() for leaf in inputs(queries, "grouped", 96, keys))
    exact = attend_math(q.double(), k.double(), v.double(), sink.double(), window)
    assert_close(attend_flash(q, k, v, sink, window), exact)


@pytest.mark.parametrize("attend", [lambda *x: attend_flash(*x, 128), attend_cudnn])
def test_compiled_equals_eager(attend) -> None:
    leaves = inputs(1000, "grouped", 96)
    compiled = torch.compile(attend, fullgraph=True)
    grad = torch.randn_like(leaves[0])
    ours, eager = compiled(*leaves), attend(*leaves)
    assert_close(ours, eager)
    for actual, expected in zip(
        torch.autograd.grad(ours, leaves, grad),
        torch.autograd.grad(eager, leaves, grad),
        strict=True,
    ):
        assert_close(actual, expected, limit=ATTENTION_GRADIENT)


def test_strided_values_are_read_in_place() -> None:
    """Values as a view of the joint projection, as a cache or a caller may hand them over."""
    q, k, v, sink = (leaf.detach() for leaf in inputs(65, "grouped", 96))
    joint = torch.cat([k, v], dim=2)
    views = joint.split([2, 2], dim=2)
    for attend in (lambda *x: attend_flash(*x, 16), attend_cudnn):
        assert_close(attend(q, *views, sink), attend(q, k, v, sink))
