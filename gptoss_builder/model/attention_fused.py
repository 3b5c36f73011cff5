"""Attention by FlashAttention-2 and cuDNN, with sinks, through ATen's own operators.

Neither kernel knows sinks. A sink takes probability and adds no value, so with the kernel's
`lse = logsumexp(scores)` and the head's sink logit b, `lse' = logaddexp(lse, b)`:

    out' = out · exp(lse − lse')
    backward(out', lse')                    → dq, dk, dv, exactly: it rebuilds exp(s − lse')
    db = −Σ exp(b − lse') · rowsum(dout' ∘ out')

No mask and no extra key column exists, and grouped queries read the keys where they are.

Legend: B sequences, T queries, S keys, H query heads, K key/value heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gptoss_builder.errors import InputError

aten = torch.ops.aten


def _with_sink(out_BTHd: Tensor, lse_BHT: Tensor, sink_H: Tensor) -> tuple[Tensor, Tensor]:
    all_BHT = torch.logaddexp(lse_BHT, sink_H.to(lse_BHT.dtype)[:, None])
    keep_BTH1 = (lse_BHT - all_BHT).exp().transpose(1, 2).unsqueeze(-1)
    return (out_BTHd * keep_BTH1).to(out_BTHd.dtype), all_BHT


def _sink_grad(grad_BTHd: Tensor, out_BTHd: Tensor, lse_BHT: Tensor, sink_H: Tensor) -> Tensor:
    row_BHT = (grad_BTHd.to(lse_BHT.dtype) * out_BTHd).sum(-1).transpose(1, 2)
    share_BHT = (sink_H.to(lse_BHT.dtype)[:, None] - lse_BHT).exp()
    return -(share_BHT * row_BHT).sum((0, 2)).to(sink_H.dtype)


class _Flash(torch.autograd.Function):
    """FlashAttention-2 in [B, T, H, d]; causal, the last query at the last key."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BTHd: Tensor,
        k_BSKd: Tensor,
        v_BSKd: Tensor,
        sink_H: Tensor | None,
        window: int | None,
    ) -> Tensor:
        left, right = (None, None) if window is None else (window - 1, 0)
        out_BTHd: Tensor
        out_BTHd, lse_BHT, seed, offset, _ = aten._flash_attention_forward(
            q_BTHd,
            k_BSKd,
            v_BSKd,
            None,
            None,
            q_BTHd.shape[1],
            k_BSKd.shape[1],
            0.0,
            True,
            False,
            scale=q_BTHd.shape[-1] ** -0.5,
            window_size_left=left,
            window_size_right=right,
        )
        if sink_H is not None:
            out_BTHd, lse_BHT = _with_sink(out_BTHd, lse_BHT, sink_H)
        ctx.window = (left, right)
        ctx.save_for_backward(q_BTHd, k_BSKd, v_BSKd, sink_H, out_BTHd, lse_BHT, seed, offset)
        return out_BTHd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTHd: Tensor) -> tuple[Tensor | None, ...]:
        q_BTHd, k_BSKd, v_BSKd, sink_H, out_BTHd, lse_BHT, seed, offset = ctx.saved_tensors
        left, right = ctx.window
        q_grad, k_grad, v_grad = aten._flash_attention_backward(
            grad_BTHd.contiguous(),
            q_BTHd,
            k_BSKd,
            v_BSKd,
            out_BTHd,
            lse_BHT,
            None,
            None,
            q_BTHd.shape[1],
            k_BSKd.shape[1],
            0.0,
            True,
            seed,
            offset,
            scale=q_BTHd.shape[-1] ** -0.5,
            window_size_left=left,
            window_size_right=right,
        )
        sink_grad = None if sink_H is None else _sink_grad(grad_BTHd, out_BTHd, lse_BHT, sink_H)
        return q_grad, k_grad, v_grad, sink_grad, None


class _Cudnn(torch.autograd.Function):
    """cuDNN's attention, causal over as many keys as queries; it reads [B, H, T, d] views."""

    @staticmethod
    def forward(
        ctx: Any, q_BTHd: Tensor, k_BTKd: Tensor, v_BTKd: Tensor, sink_H: Tensor | None
    ) -> Tensor:
        out_BHTd, lse_BHT1, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            q_BTHd.transpose(1, 2),
            k_BTKd.transpose(1, 2),
            v_BTKd.transpose(1, 2),
            None,
            True,
            0.0,
            True,
            False,
            scale=q_BTHd.shape[-1] ** -0.5,
        )
        out_BTHd: Tensor = out_BHTd.transpose(1, 2)
        ctx.lse_shape = lse_BHT1.shape
        lse_BHT = lse_BHT1.reshape(out_BHTd.shape[:3])
        if sink_H is not None:
            out_BTHd, lse_BHT = _with_sink(out_BTHd, lse_BHT, sink_H)
        ctx.save_for_backward(q_BTHd, k_BTKd, v_BTKd, sink_H, out_BTHd, lse_BHT, seed, offset)
        return out_BTHd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTHd: Tensor) -> tuple[Tensor | None, ...]:
        q_BTHd, k_BTKd, v_BTKd, sink_H, out_BTHd, lse_BHT, seed, offset = ctx.saved_tensors
        length = q_BTHd.shape[1]
        q_grad, k_grad, v_grad = aten._scaled_dot_product_cudnn_attention_backward(
            grad_BTHd.contiguous().transpose(1, 2),
            q_BTHd.transpose(1, 2),
            k_BTKd.transpose(1, 2),
            v_BTKd.transpose(1, 2),
            out_BTHd.transpose(1, 2),
            lse_BHT.reshape(ctx.lse_shape),
            seed,
            offset,
            None,
            None,
            None,
            length,
            length,
            0.0,
            True,
            scale=q_BTHd.shape[-1] ** -0.5,
        )
        sink_grad = None if sink_H is None else _sink_grad(grad_BTHd, out_BTHd, lse_BHT, sink_H)
        grads = (grad.transpose(1, 2) for grad in (q_grad, k_grad, v_grad))
        return (*grads, sink_grad)


def attend_flash(
    q_BTHd: Tensor, k_BSKd: Tensor, v_BSKd: Tensor, sink_H: Tensor | None, window: int | None
) -> Tensor:
    """`attention_math.attend_math` by FlashAttention-2: bf16 or fp16, sm80 and later."""
    out_BTHd: Tensor = _Flash.apply(  # type: ignore[no-untyped-call]  # torch
        q_BTHd, k_BSKd, v_BSKd, sink_H, window
    )
    return out_BTHd


def attend_cudnn(q_BTHd: Tensor, k_BTKd: Tensor, v_BTKd: Tensor, sink_H: Tensor | None) -> Tensor:
    """`attention_math.attend_math` by cuDNN: bf16 or fp16, sm80 and later, T = S > 1, no window.

    Raises:
        InputError: fewer than two tokens, or more keys than queries.
    """
    queries, keys = q_BTHd.shape[1], k_BTKd.shape[1]
    if queries != keys or queries < 2:
        raise InputError(
            f"cuDNN's attention needs as many keys as queries and at least two, not {queries} "
            f"queries and {keys} keys; set model.attention.backend to flash"
        )
    out_BTHd: Tensor = _Cudnn.apply(  # type: ignore[no-untyped-call]  # torch
        q_BTHd, k_BTKd, v_BTKd, sink_H
    )
    return out_BTHd
