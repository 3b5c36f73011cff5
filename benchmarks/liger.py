"""Liger-Kernel's fused experts behind our router: the same parameters, the same choices.

`LIGER_FUSED_MOE_AUTOTUNE=0` takes its fixed configurations; without it Liger compiles and times
some 240 of them before the first step, which takes minutes. Liger adds up the gradient of
the routing weights in bf16 with atomics: two runs differ in it.
"""

# T tokens, K choices of a token, D model width

from __future__ import annotations

import importlib.metadata
import os

import torch
from torch import Tensor, nn
from triton.errors import TritonError

from gptoss_builder.model.moe import MoE
from gptoss_builder.model.router import balance_loss, choose, router_logits, sort_by_expert

LIGER_FAILURES = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, TritonError)
"""What a version that does not fit these versions of torch and Triton raises."""


def liger_name() -> str | None:
    """What to call it in a table, with its version; None where it is not installed."""
    try:
        version = importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return None
    fixed = os.environ.get("LIGER_FUSED_MOE_AUTOTUNE", "1") == "0"
    return f"Liger {version}, {'fixed tiles' if fixed else 'tuned'}"


class LigerMoE(nn.Module):
    """The layer `ours` with Liger's block of experts in place of its own; shares its parameters."""

    def __init__(self, ours: MoE) -> None:
        super().__init__()
        from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

        self.block = LigerFusedMoEFunction.apply
        self.top_k = ours.top_k
        self.router, self.w13, self.w2 = ours.router, ours.w13, ours.w2

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """As `MoE.forward`, without shared experts."""
        logits_TE = router_logits(x_TD, self.router)
        weight_TK, choice_TK = choose(logits_TE, self.top_k, compiled=True)
        y_TD = self.block(
            x_TD, self.w13, self.w2, choice_TK.to(torch.int32), weight_TK.to(x_TD.dtype)
        )
        # Liger sorts by itself; ours needs the counts for the balance loss
        offsets_E = sort_by_expert(choice_TK, weight_TK, self.router.shape[0]).offsets_E
        return y_TD, balance_loss(logits_TE, offsets_E, self.top_k)
