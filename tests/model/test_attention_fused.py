"""Sinks around a kernel that knows none, with the kernels' contract played by plain fp64 maths.

What the real kernels return is tested in tests/gpu/test_attention.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from gptoss_builder.model import attention_fused
from gptoss_builder.model.attention_fused import attend_cudnn, attend_flash
from gptoss_builder.model.attention_math import attend_math
from tests.tolerances import assert_close

LENGTH = 13


def scores(q: Tensor, k: Tensor, scale: float, window: int | None) -> Tensor:
    """[B, H, T, S] from [B, H, T, d] and [B, H, S, d]."""
    past = k.shape[2] - q.shape[2]
    distance = torch.arange(q.shape[2])[:, None] + past - torch.arange(k.shape[2])
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    return (q @ k.transpose(2, 3) * scale).masked_fill(~seen, -torch.inf)


def kernel_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    s = scores(q, k, scale, window)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def kernel_backward(grad, q, k, v, out, lse, scale: float, window: int | None):
    """As FlashAttention's: probabilities from the `lse` given, rowsum from the `out` given."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    p = (scores(q, wide_k, scale, window) - lse[..., None]).exp()
    ds = p * (grad @ wide_v.transpose(2, 3) - (grad * out).sum(-1, keepdim=True))
    narrow = [
        wide.unflatten(1, (k.shape[1], group)).sum(2)
        for wide in (ds.transpose(2, 3) @ q * scale, p.transpose(2, 3) @ grad)
    ]
    return ds @ wide_k * scale, *narrow


def swap(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def flash_forward(
    q, k, v, cum_q, cum_k, max_q, max_k, dropout, causal, debug, *,
    scale, window_size_left, window_size_right,
):  # fmt: skip
    assert (cum_q, cum_k, dropout, causal, debug) == (None, None, 0.0, True, False)
    assert (max_q, max_k) == (q.shape[1], k.shape[1])
    assert window_size_right == (None if window_size_left is None else 0)
    window = None if window_size_left is None else window_size_left + 1
    out, lse = kernel_forward(*swap(q, k, v), scale, window)
    return out.transpose(1, 2), lse, torch.zeros(2), torch.zeros(()), None


def flash_backward(
    grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, dropout, causal, seed, offset, *,
    scale, window_size_left, window_size_right,
):  # fmt: skip
    assert (cum_q, cum_k, dropout, causal) == (None, None, 0.0, True)
    assert (max_q, max_k) == (q.shape[1], k.shape[1])
    assert window_size_right == (None if window_size_left is None else 0)
    window = None if window_size_left is None else window_size_left + 1
    return swap(*kernel_backward(*swap(grad, q, k, v, out), lse, scale, window))


def cudnn_forward(q, k, v, bias, want_lse, dropout, causal, debug, *, scale):
    assert (bias, want_lse, dropout, causal, debug) == (None, True, 0.0, True, False)
    out, lse = kernel_forward(q, k, v, scale, None)
    return out, lse[..., None], None, None, q.shape[2], k.shape[2], *torch.zeros(2), None


def cudnn_backward(
    grad, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout, causal, *,
    scale,
):  # fmt: skip
    assert (bias, cum_q, cum_k, dropout, causal) == (None, None, None, 0.0, True)
    assert (max_q, max_k) == (q.shape[2], k.shape[2])
    assert lse.ndim == 4
    return kernel_backward(grad, q, k, v, out, lse[..., 0], scale, None)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    played = SimpleNamespace(
        _flash_attention_forward=flash_forward,
        _flash_attention_backward=flash_backward,
        _scaled_dot_product_cudnn_attention=cudnn_forward,
        _scaled_dot_product_cudnn_attention_backward=cudnn_backward,
    )
    monkeypatch.setattr(attention_fused, "aten", played)


def inputs() -> list[Tensor]:
    shapes = [(2, LENGTH, 6, 10), (2, LENGTH, 2, 10), (2, LENGTH, 2, 10), (6,)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize(
    ("kernel", "window"),
    [("flash", None), *(("flash", w) for w in (1, 3, LENGTH, LENGTH + 1)), ("cudnn", None)],
)
def test_values_and_gradients_equal_the_explicit_softmax(
    kernel: str, window: int | None, sinks: bool
) -> None:
    q, k, v, sink = inputs()
    leaves = (q, k, v, sink) if sinks else (q, k, v)
    used = sink if sinks else None
    flash = kernel == "flash"
    out = attend_flash(q, k, v, used, window) if flash else attend_cudnn(q, k, v, used)
    exact = attend_math(q, k, v, used, window)
    assert_close(out, exact)
    grad = torch.randn_like(out)
    for actual, expected in zip(
        torch.autograd.grad(out, leaves, grad),
        torch.autograd.grad(exact, leaves, grad),
        strict=True,
    ):
        assert_close(actual, expected)


@pytest.mark.usefixtures("kernels")
def test_output_and_lse_are_kept_once_with_the_sink_in_them() -> None:
    q, k, v, sink = inputs()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        out = attend_flash(q, k, v, sink, 3)
    sizes = sorted(tensor.numel() for tensor in kept)
    lse = 2 * 6 * LENGTH
    seeds = [1, 2]
    assert sizes == sorted([*seeds, q.numel(), k.numel(), v.numel(), 6, out.numel(), lse])


def test_operators_have_the_arguments_that_are_passed() -> None:
    """Private operators of torch: a version that changes them shows here, not on a GPU."""

    def names(operator) -> str:
        return " ".join(argument.name for argument in operator.default._schema.arguments)

    aten = torch.ops.aten
    flash = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"
    assert names(aten._flash_attention_forward).startswith(f"{flash} scale window_size_left")
    assert names(aten._flash_attention_backward) == (
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p "
        "is_causal rng_state unused scale window_size_left window_size_right"
    )
    assert names(aten._scaled_dot_product_cudnn_attention) == (
        "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale"
    )
    assert names(aten._scaled_dot_product_cudnn_attention_backward) == (
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q "
        "cum_seq_k max_q max_k dropout_p is_causal scale"
    )
