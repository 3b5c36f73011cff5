"""Training steps of Hugging Face transformers' Qwen2-MoE of a plan's size.

Three ways to run it, all compiled, with SDPA and `grouped_mm` experts:

- `hf-as-is`: fp32 weights, gradients and AdamW state, products in bf16 by autocast: what a user
  gets who asks for that. transformers' `grouped_mm` is not known to autocast; with fp32 weights it
  takes, when compiled, a loop over the experts in fp32 that waits for the device
  (`_can_use_grouped_mm` in its `integrations/moe.py`, 5.17 and 5.24).
- `hf`: the same with each expert weight cast to bf16 where it is read: the like of ours.
- `hf-bf16`: weights, gradients and state in bf16: faster and smaller, and less exact, since
  updates below a weight's last bit are lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gptoss_builder.plan.schema import Plan

EXPERT_WEIGHTS = ("gate_up_proj", "down_proj")


How = Literal["hf", "hf-as-is", "hf-bf16"]


def model(plan: Plan, how: How, *, device: str = "cuda") -> nn.Module:
    """Qwen2-MoE of the plan's size on the device.

    Args:
        plan: the sizes.
        how: which of the three.
        device: where it is made.
    """
    from transformers import Qwen2MoeForCausalLM

    with torch.device(device):
        module: nn.Module = Qwen2MoeForCausalLM(_config(plan))
    if how == "hf-bf16":
        return module.to(torch.bfloat16)
    if how == "hf-as-is":
        return module
    for part in list(module.modules()):  # registering adds modules
        if all(hasattr(part, name) for name in EXPERT_WEIGHTS):
            for name in EXPERT_WEIGHTS:
                parametrize.register_parametrization(part, name, _ReadAsBf16(), unsafe=True)
    return module


class _ReadAsBf16(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        """The weight as the products take it; its gradient comes back in fp32."""
        return weight.to(torch.bfloat16)


def _config(plan: Plan) -> Any:
    from transformers import Qwen2MoeConfig

    spec = plan.spec.model
    attention, moe = spec.attention, spec.moe
    return Qwen2MoeConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.d_model,
        num_hidden_layers=spec.layers,
        num_attention_heads=attention.heads,
        num_key_value_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        moe_intermediate_size=moe.d_ff,
        shared_expert_intermediate_size=max(1, moe.shared_experts) * moe.d_ff,
        num_experts=moe.experts,
        num_experts_per_tok=moe.top_k,
        tie_word_embeddings=spec.tie_embeddings,
        norm_topk_prob=True,
        qkv_bias=False,
        output_router_logits=True,
        use_cache=False,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )


def loss_of(module: nn.Module, tokens_BT: Tensor, how: How) -> Tensor:
    """Its loss on its own tokens, shifted inside, with the auxiliary loss; an fp32 scalar."""
    kind = tokens_BT.device.type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=how != "hf-bf16"):
        loss: Tensor = module(input_ids=tokens_BT, labels=tokens_BT).loss
    return loss


def make_step(plan: Plan, tokens_BT: Tensor, how: How) -> Callable[[], Tensor]:
    """A step of AdamW with clipping; the call returns the loss, on the device."""
    # dynamo says that it looks through transformers' cached version checks, which is fine
    warnings.filterwarnings("ignore", message=".*lru_cache.*")
    module = model(plan, how)
    module.train()
    module.compile()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def step() -> Tensor:
        loss = loss_of(module, tokens_BT, how)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
