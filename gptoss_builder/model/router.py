"""The router: fp32 logits, top-k choice, order of the rows, load-balancing loss."""

# T tokens, K choices of a token, R = T·K rows sorted by expert, E experts, D model width

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gptoss_builder.kernels.elementwise import run_compiled
from gptoss_builder.kernels.experts import Routing
from gptoss_builder.kernels.opaque import opaque


def router_logits(x_TD: Tensor, router_ED: Tensor) -> Tensor:
    """Compute `x routerᵀ` in fp32 (fp64 for fp64), autocast or not; it keeps `x_TD` as it is.

    bf16 logits would tie where fp32 ones do not, and ties go to other experts. For bf16 tokens
    on a GPU the fp32 weights are split into three bf16 parts, whose products are exact in fp32,
    and the tensor cores add them up in fp32: the CUDA cores' fp32 product takes an eighth of a
    whole layer's time (docs/kernel.md).
    """
    logits_TE: Tensor = _RouterLogits.apply(x_TD, router_ED)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return logits_TE


class _RouterLogits(torch.autograd.Function):
    # plain autograd would keep the fp32 copy of x: twice the bytes of x itself
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, router_ED: Tensor) -> Tensor:
        ctx.save_for_backward(x_TD, router_ED)
        with torch.autocast(x_TD.device.type, enabled=False):
            if x_TD.is_cuda and x_TD.dtype == torch.bfloat16:
                parts_ED = torch.cat(split_fp32(router_ED.float()))
                parts_TE = torch.mm(x_TD, parts_ED.T, out_dtype=torch.float32)
                logits_TE: Tensor = parts_TE.view(-1, 3, router_ED.shape[0]).sum(1)
                return logits_TE
            dtype = torch.promote_types(x_TD.dtype, torch.float32)
            return x_TD.to(dtype) @ router_ED.to(dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_TD, router_ED = ctx.saved_tensors
        (dlogits_TE,) = grads
        with torch.autocast(x_TD.device.type, enabled=False):
            if x_TD.is_cuda and x_TD.dtype == torch.bfloat16:
                dx_TD, drouter_ED = _split_backward(dlogits_TE, x_TD, router_ED.float())
            else:
                dx_TD = dlogits_TE @ router_ED.to(dlogits_TE.dtype)
                drouter_ED = dlogits_TE.T @ x_TD.to(dlogits_TE.dtype)
        return dx_TD.to(x_TD.dtype), drouter_ED.to(router_ED.dtype)


def split_fp32(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three bf16 tensors whose sum is `x`: 3 · 8 bits of significand are fp32's 24."""
    high = x.bfloat16()
    rest = x - high
    middle = rest.bfloat16()
    return high, middle, (rest - middle).bfloat16()


def _split_backward(dlogits_TE: Tensor, x_TD: Tensor, router_ED: Tensor) -> tuple[Tensor, Tensor]:
    high_TE, middle_TE, low_TE = split_fp32(dlogits_TE)
    high_ED, middle_ED, _ = split_fp32(router_ED)
    # dx is rounded to bf16, so products below 2^-16 of the largest make no difference to it
    dx_TD = torch.cat([high_TE, middle_TE, high_TE], dim=1) @ torch.cat(
        [high_ED, high_ED, middle_ED]
    )
    parts_TE = torch.cat([high_TE, middle_TE, low_TE], dim=1)
    parts_ED = torch.mm(parts_TE.T, x_TD, out_dtype=torch.float32)
    return dx_TD, parts_ED.view(3, -1, x_TD.shape[1]).sum(0)


def choose(logits_TE: Tensor, top_k: int, *, compiled: bool = False) -> tuple[Tensor, Tensor]:
    """Pick each token's experts; the weights are a softmax over the chosen logits.

    That equals the softmax over all experts, normalised to a sum of one over the chosen.

    Args:
        logits_TE: fp32.
        top_k: experts of a token.
        compiled: let `torch.compile` make the kernel that picks, on a GPU.

    Returns:
        Weights and expert numbers, both `[T, K]`, largest first. A NaN counts as the largest, so
        the numbers stay in range.
    """
    top_TK, choice_TK = _TopK.apply(logits_TE, top_k, compiled)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return top_TK.softmax(dim=1), choice_TK


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TE: Tensor, k: int, compiled: bool) -> tuple[Tensor, Tensor]:
        top_TK, choice_TK = pick(logits_TE, k, compiled)
        ctx.save_for_backward(choice_TK)
        ctx.mark_non_differentiable(choice_TK)
        ctx.experts = logits_TE.shape[1]
        return top_TK, choice_TK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (choice_TK,) = ctx.saved_tensors
        return spread(grads[0], choice_TK, ctx.experts), None, None


def _fake_pick(logits_TE: Tensor, k: int, _compiled: bool) -> tuple[Tensor, Tensor]:
    top_TK = logits_TE.new_empty(logits_TE.shape[0], k)
    return top_TK, torch.empty_like(top_TK, dtype=torch.int64)


# PyTorch's own top-k of 8 to 128 experts is a selection and a sort, 74 µs for 32,768 tokens on an
# H200: a fiftieth of a layer's forward and backward
@opaque(_fake_pick)
def pick(logits_TE: Tensor, k: int, compiled: bool) -> tuple[Tensor, Tensor]:
    """The k largest logits of each token and their columns, largest first."""
    if compiled and logits_TE.is_cuda:
        top_TK, choice_TK = run_compiled(largest_of(k), logits_TE)
    else:
        top_TK, choice_TK = logits_TE.topk(k, dim=1)
    return top_TK, choice_TK


@functools.cache
def largest_of(k: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """`topk` by k maxima, one after the other: what `torch.compile` makes one kernel of.

    Where fewer than k logits are above −inf a column can come twice; all but its first weight
    are 0 then.
    """

    def largest(logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        column_E = torch.arange(logits_TE.shape[1], device=logits_TE.device)
        picked = []
        for _ in range(k):
            picked.append(logits_TE.max(dim=1))
            taken_TE = column_E == picked[-1].indices[:, None]
            logits_TE = logits_TE.masked_fill(taken_TE, -math.inf)
        return (
            torch.stack([one.values for one in picked], dim=1),
            torch.stack([one.indices for one in picked], dim=1),
        )

    return largest


def _fake_spread(value_TK: Tensor, _: Tensor, experts_count: int) -> Tensor:
    return value_TK.new_empty(value_TK.shape[0], experts_count)


# an op of its own because torch 2.13's compiler for CPUs may add the gradient of the balance loss
# to a scatter before that has been written, which loses it without a word
@opaque(_fake_spread)
def spread(value_TK: Tensor, choice_TK: Tensor, experts_count: int) -> Tensor:
    """Put each choice's value in its expert's column of `[T, E]`, and 0 elsewhere."""
    zero_TE = value_TK.new_zeros(value_TK.shape[0], experts_count)
    return zero_TE.scatter_(1, choice_TK, value_TK)


def sort_by_expert(choice_TK: Tensor, weight_TK: Tensor, experts_count: int) -> Routing:
    """Order the T·K choices by expert, tokens in their order within one expert."""
    # a radix sort makes a pass for every 8 bits of its keys
    key = torch.uint8 if experts_count <= 256 else torch.int32
    sorted_R, order_R = choice_TK.flatten().to(key).sort(stable=True)
    expert_E = torch.arange(experts_count, dtype=key, device=choice_TK.device)
    offsets_E = torch.searchsorted(sorted_R, expert_E, right=True, out_int32=True)
    row_R = torch.arange(order_R.numel(), device=choice_TK.device)
    position_R = torch.empty_like(order_R).scatter_(0, order_R, row_R)
    top_k = choice_TK.shape[1]
    return Routing(offsets_E, order_R // top_k, position_R.view_as(choice_TK), weight_TK)


def balance_loss(logits_TE: Tensor, offsets_E: Tensor, top_k: int) -> Tensor:
    """Load-balancing loss `E · Σ f_e P_e` of one layer (Fedus et al. 2021, eq. 4, for k choices).

    f is the fraction of the T·k choices that went to expert e, without a gradient; P the mean
    probability of a softmax over all experts. 1.0 when balanced, whatever k; E when one expert
    takes everything. Every token counts, padding too. 0 when there is no token.
    """
    tokens, count = logits_TE.shape
    chosen_E = offsets_E.diff(prepend=offsets_E.new_zeros(1))
    fraction_E = chosen_E.to(logits_TE.dtype) / max(tokens * top_k, 1)
    probability_E = logits_TE.softmax(dim=1).sum(dim=0) / max(tokens, 1)
    return count * (fraction_E * probability_E).sum()
