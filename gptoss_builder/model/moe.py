"""Mixture of experts: an fp32 top-k router, a block of routed experts, shared experts.

Nothing waits for the device except the `stacked` dispatch, which is a loop over the experts
by name.
"""

# T tokens, K choices of a token, R = T·K rows sorted by expert, E experts, D model width,
# F hidden width of an expert, N width of the shared experts together

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gptoss_builder.kernels.experts import How, Routing, experts
from gptoss_builder.kernels.opaque import opaque
from gptoss_builder.plan.schema import Plan


class MoE(nn.Module):
    """Routed and shared experts of one layer.

    Parameters, uninitialised until `model.init` fills them: `router [E, D]`, `w13 [E, 2F, D]`
    with the gate rows first, `w2 [E, D, F]`, and with n shared experts `shared_w13 [2nF, D]` and
    `shared_w2 [D, nF]`: one SwiGLU that every token visits. fp32 or bf16: the experts' weights
    are cast to the dtype of the input, the router works in fp32 whatever they are.

    Args:
        plan: what runs, and the sizes.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        moe, d_model = plan.spec.model.moe, plan.spec.model.d_model
        shared = moe.shared_experts * moe.d_ff
        run = plan.execution
        self.top_k = moe.top_k
        self.how = How(
            run.up_products, run.down_products, run.backward_products, run.backward, plan.launch
        )
        self.shared_how = How("dense", "dense", "dense", run.backward, None)
        self.router = nn.Parameter(torch.empty(moe.experts, d_model))
        self.w13 = nn.Parameter(torch.empty(moe.experts, 2 * moe.d_ff, d_model))
        self.w2 = nn.Parameter(torch.empty(moe.experts, d_model, moe.d_ff))
        self.shared_w13 = nn.Parameter(torch.empty(2 * shared, d_model)) if shared else None
        self.shared_w2 = nn.Parameter(torch.empty(d_model, shared)) if shared else None

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the experts that each token chooses.

        Args:
            x_TD: tokens; their dtype is that of the products.

        Returns:
            `[T, D]` of the dtype of `x_TD`, and the auxiliary loss of this layer (see
            `balance_loss`).
        """
        logits_TE = router_logits(x_TD, self.router)
        weight_TK, choice_TK = choose(logits_TE, self.top_k)
        routing = sort_by_expert(choice_TK, weight_TK, self.router.shape[0])
        y_TD = experts(x_TD, self.w13.to(x_TD.dtype), self.w2.to(x_TD.dtype), routing, self.how)
        if self.shared_w13 is not None and self.shared_w2 is not None:
            w13_1ND = self.shared_w13.to(x_TD.dtype)[None]
            w2_1DN = self.shared_w2.to(x_TD.dtype)[None]
            y_TD = y_TD + experts(x_TD, w13_1ND, w2_1DN, every_token(x_TD), self.shared_how)
        return y_TD, balance_loss(logits_TE, routing.offsets_E, self.top_k)


def router_logits(x_TD: Tensor, router_ED: Tensor) -> Tensor:
    """Compute `x routerᵀ` in fp32 (fp64 for fp64), autocast or not, keeping `x_TD` as it is.

    bf16 logits would tie where fp32 ones do not, and ties go to other experts.
    """
    logits_TE: Tensor = _RouterLogits.apply(x_TD, router_ED)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return logits_TE


class _RouterLogits(torch.autograd.Function):
    # plain autograd would keep the fp32 copy of x: twice the bytes of x itself
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, router_ED: Tensor) -> Tensor:
        ctx.save_for_backward(x_TD, router_ED)
        dtype = torch.promote_types(x_TD.dtype, torch.float32)
        with torch.autocast(x_TD.device.type, enabled=False):
            return x_TD.to(dtype) @ router_ED.to(dtype).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_TD, router_ED = ctx.saved_tensors
        (dlogits_TE,) = grads
        dtype = dlogits_TE.dtype
        with torch.autocast(x_TD.device.type, enabled=False):
            dx_TD = dlogits_TE @ router_ED.to(dtype) if ctx.needs_input_grad[0] else None
            drouter_ED = dlogits_TE.T @ x_TD.to(dtype) if ctx.needs_input_grad[1] else None
        return (
            None if dx_TD is None else dx_TD.to(x_TD.dtype),
            None if drouter_ED is None else drouter_ED.to(router_ED.dtype),
        )


def choose(logits_TE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Pick each token's experts; the weights are a softmax over the chosen logits.

    That equals the softmax over all experts, normalised to a sum of one over the chosen.

    Returns:
        Weights and expert numbers, both `[T, K]`, largest first. A NaN counts as the largest, so
        the numbers stay in range.
    """
    top_TK, choice_TK = _TopK.apply(logits_TE, top_k)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return top_TK.softmax(dim=1), choice_TK


class _TopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
        top_TK, choice_TK = logits_TE.topk(top_k, dim=1)
        ctx.save_for_backward(choice_TK)
        ctx.mark_non_differentiable(choice_TK)
        ctx.experts = logits_TE.shape[1]
        return top_TK, choice_TK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (choice_TK,) = ctx.saved_tensors
        return spread(grads[0], choice_TK, ctx.experts), None


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
    # a radix sort of 32-bit keys takes half the passes of 64-bit ones
    sorted_R, order_R = choice_TK.flatten().int().sort(stable=True)
    expert_E = torch.arange(experts_count, dtype=torch.int32, device=choice_TK.device)
    offsets_E = torch.searchsorted(sorted_R, expert_E, right=True, out_int32=True)
    row_R = torch.arange(order_R.numel(), device=choice_TK.device)
    position_R = torch.empty_like(order_R).scatter_(0, order_R, row_R)
    top_k = choice_TK.shape[1]
    return Routing(offsets_E, order_R // top_k, position_R.view_as(choice_TK), weight_TK)


def every_token(x_TD: Tensor) -> Routing:
    """Route each token to the one expert that there is, with weight 1."""
    offsets_1 = torch.full((1,), x_TD.shape[0], dtype=torch.int32, device=x_TD.device)
    return Routing(offsets_1, None, None, None)


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
