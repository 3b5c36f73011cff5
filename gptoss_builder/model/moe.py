"""Mixture of experts: an fp32 top-k router, a block of routed experts, shared experts.

Nothing waits for the device except the `stacked` dispatch, which is a loop over the experts
by name.
"""

# T tokens, E experts, D model width, F hidden width of an expert, N width of the shared experts

from __future__ import annotations

import torch
from torch import Tensor, nn

from gptoss_builder.kernels.experts import How, Routing, experts
from gptoss_builder.kernels.up import encode_launch
from gptoss_builder.model.router import balance_loss, choose, router_logits, sort_by_expert
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
            run.up_products,
            run.down_products,
            run.backward_products,
            run.backward,
            run.elementwise,
            encode_launch(plan.launch),
        )
        self.shared_how = self.how._replace(up="dense", down="dense", products="dense", launch=())
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
            `router.balance_loss`).
        """
        logits_TE = router_logits(x_TD, self.router)
        weight_TK, choice_TK = choose(
            logits_TE, self.top_k, compiled=self.how.elementwise != "plain"
        )
        routing = sort_by_expert(choice_TK, weight_TK, self.router.shape[0])
        y_TD = experts(x_TD, self.w13.to(x_TD.dtype), self.w2.to(x_TD.dtype), routing, self.how)
        if self.shared_w13 is not None and self.shared_w2 is not None:
            w13_1ND = self.shared_w13.to(x_TD.dtype)[None]
            w2_1DN = self.shared_w2.to(x_TD.dtype)[None]
            y_TD = y_TD + experts(x_TD, w13_1ND, w2_1DN, every_token(x_TD), self.shared_how)
        return y_TD, balance_loss(logits_TE, routing.offsets_E, self.top_k)


def every_token(x_TD: Tensor) -> Routing:
    """Route each token to the one expert that there is, with weight 1."""
    offsets_1 = torch.full((1,), x_TD.shape[0], dtype=torch.int32, device=x_TD.device)
    return Routing(offsets_1, None, None, None)
