"""The whole model: embedding, blocks, final norm, head.

Legend: B sequences, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gptoss_builder.errors import InputError
from gptoss_builder.model.attention import Attention, require_inputs
from gptoss_builder.model.cache import KVCache, LayerCache
from gptoss_builder.model.moe import MoE
from gptoss_builder.model.norm import RMSNorm, wide_dtype
from gptoss_builder.model.rope import RopeTable, rope_table
from gptoss_builder.plan.schema import Plan


class Output(NamedTuple):
    """What `Transformer.forward` returns."""

    logits_BTV: Tensor
    """fp32 (fp64 for an fp64 model)."""
    aux_loss: Tensor
    """Load-balancing loss, averaged over layers, before its coefficient; fp32 scalar."""


class Block(nn.Module):
    """Pre-norm attention, then pre-norm mixture of experts, each added to the stream."""

    def __init__(self, plan: Plan, layer: int) -> None:
        super().__init__()
        model = plan.spec.model
        self.attention_norm = RMSNorm(model.d_model, model.norm_eps)
        self.attention = Attention(plan, layer)
        self.moe_norm = RMSNorm(model.d_model, model.norm_eps)
        self.moe = MoE(plan)

    def forward(
        self, x_BTD: Tensor, table: RopeTable, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """One block; returns the stream and the layer's load-balancing loss."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), table, cache)
        y_TD, aux = self.moe(self.moe_norm(x_BTD).flatten(0, 1))
        return x_BTD + y_TD.view_as(x_BTD), aux


class Transformer(nn.Module):
    """A plan's model. Made by `model.build.build`; parameters are uninitialised until then.

    Parameters are fp32. The residual stream has one type, settled at the embedding (see
    `compute_dtype`), and every weight is cast to it at use, so handing the module matrices of
    that type (as the trainer does) costs no cast. Norms, rotation, router and softmax work
    in fp32. Layers in `plan.execution.checkpointed_layers` are recomputed in the backward
    whenever gradients are on, in eval mode too.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        model = plan.spec.model
        self.embedding = nn.Parameter(torch.empty(model.vocab, model.d_model))
        self.blocks = nn.ModuleList(Block(plan, layer) for layer in range(model.layers))
        self.norm = RMSNorm(model.d_model, model.norm_eps)
        self.head = (
            None if model.tie_embeddings else nn.Parameter(torch.empty(model.vocab, model.d_model))
        )
        self._checkpointed = frozenset(plan.execution.checkpointed_layers)
        self._kinds = plan.spec.layer_kinds()
        self._kernels = {plan.execution.window_attention} if "window" in self._kinds else set()
        if "full" in self._kinds:
            self._kernels.add(plan.execution.full_attention)

    @property
    def head_weight(self) -> Tensor:
        """Output projection [V, D]: the embedding where the spec ties them."""
        return self.embedding if self.head is None else self.head

    def compute_dtype(self, device_type: str) -> torch.dtype:
        """Type of the residual stream: autocast's where it is on, else the big matrices'."""
        if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
        weight = self.get_parameter("blocks.0.attention.wqkv")
        return weight.dtype

    def forward(self, tokens_BT: Tensor, *, cache: KVCache | None = None) -> Output:
        """Logits of every position and the load-balancing loss; arguments as for `hidden`."""
        x_BTD, aux = self.hidden(tokens_BT, cache=cache)
        return Output(self.logits(x_BTD), aux)

    def logits(self, x_D: Tensor) -> Tensor:
        """Project `x` [..., D], taken after the final norm, to [..., V] in fp32."""
        with _no_autocast(x_D.device.type):
            projected = F.linear(x_D, self.head_weight.to(x_D.dtype))
            return projected.to(wide_dtype(projected.dtype))

    def hidden(self, tokens_BT: Tensor, *, cache: KVCache | None = None) -> tuple[Tensor, Tensor]:
        """Everything before the head.

        Args:
            tokens_BT: Token ids, int64 or int32, 0 … V − 1.
            cache: Keys and values of the tokens before these, which these join; under
                `no_grad` only.

        Returns:
            The stream after the final norm, [B, T, D] in the compute dtype, and the
            load-balancing loss averaged over layers, an fp32 scalar.

        Raises:
            InputError: tokens of another shape, or a cache that cannot take them.
            DeviceError: a kernel that the plan names cannot run on this device or dtype.
        """
        if tokens_BT.ndim != 2:
            raise InputError(f"tokens must be [batch, tokens], not {list(tokens_BT.shape)}")
        device, length = tokens_BT.device, tokens_BT.shape[1]
        dtype = self.compute_dtype(device.type)
        if not is_fake(tokens_BT):
            for kernel in self._kernels:
                require_inputs(kernel, device, dtype)
        start = 0
        if cache is not None:
            cache.require(length)
            start = cache.position
        with _no_autocast(device.type):
            tables = {
                kind: rope_table(
                    self.plan.spec.model.attention, kind, start, length, device=device, dtype=dtype
                )
                for kind in sorted(set(self._kinds))
            }
            x_BTD = F.embedding(tokens_BT, self.embedding).to(dtype)
            losses = []
            for layer, (block, kind) in enumerate(zip(self.blocks, self._kinds, strict=True)):
                if cache is not None:
                    # Around a compiled call: a cache grows, and each size would be a compile.
                    x_BTD, aux = block.forward(x_BTD, tables[kind], cache.layers[layer])
                elif layer in self._checkpointed and torch.is_grad_enabled():
                    # Nothing in a block is random, so no generator state has to be replayed.
                    x_BTD, aux = checkpoint(
                        block, x_BTD, tables[kind], use_reentrant=False, preserve_rng_state=False
                    )
                else:
                    x_BTD, aux = block(x_BTD, tables[kind])
                losses.append(aux)
            if cache is not None:
                cache.advance(length)
            return self.norm(x_BTD), torch.stack(losses).mean()


def _no_autocast(device_type: str) -> AbstractContextManager[object]:
    """One rule for types inside the model: weights are cast to the stream, and nothing else."""
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
