"""Grouped-query attention: projections, rotation, and the kernel that the plan names.

Legend: B sequences, T queries, S keys, D model width, H query heads, K key/value heads,
d head width, N = H + 2K heads, X = N·d.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptoss_builder.errors import DeviceError, InputError
from gptoss_builder.model.attention_fused import attend_cudnn, attend_flash
from gptoss_builder.model.attention_math import attend_math
from gptoss_builder.model.cache import LayerCache
from gptoss_builder.model.rope import RopeTable, rotate
from gptoss_builder.plan.schema import AttentionKernel, Plan
from gptoss_builder.spec.schema import LayerKind

_WIDEST_HEAD = {"flash": 256, "cudnn": 128}


class Attention(nn.Module):
    """One layer's attention.

    Parameters: `wqkv` [(H + 2K)·d, D], queries, keys, values from the top; `wo` [D, H·d];
    `sinks` [H], where the spec has them. `kind` and `kernel` say what the layer sees and what
    computes it.

    Raises:
        InputError: heads that do not divide, a window layer without a window, or a kernel
            that cannot do what the layer asks.
    """

    def __init__(self, plan: Plan, layer: int) -> None:
        super().__init__()
        spec = plan.spec.model.attention
        width = plan.spec.model.d_model
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.kind: LayerKind = plan.spec.layer_kinds()[layer]
        self.window = spec.window if self.kind == "window" else None
        self.kernel: AttentionKernel = (
            plan.execution.window_attention
            if self.kind == "window"
            else plan.execution.full_attention
        )
        if spec.heads % spec.kv_heads:
            raise InputError(
                f"model.attention.heads is {spec.heads}, kv_heads is {spec.kv_heads}; "
                "heads must be a multiple of kv_heads"
            )
        if self.kind == "window" and self.window is None:
            raise InputError(f"layer {layer} is a window layer; set model.attention.window")
        _require_shape(self.kernel, self.kind, self.head_dim)
        queries = spec.heads * spec.head_dim
        keys = spec.kv_heads * spec.head_dim
        self.wqkv = nn.Parameter(torch.empty(queries + 2 * keys, width))
        self.wo = nn.Parameter(torch.empty(width, queries))
        self.sinks = nn.Parameter(torch.empty(spec.heads)) if spec.sinks else None

    def forward(self, x_BTD: Tensor, table: RopeTable, cache: LayerCache | None = None) -> Tensor:
        """Attend, [B, T, D] to [B, T, D]; keys and values join `cache` where there is one."""
        heads, kv_heads = self.heads, self.kv_heads
        qkv_BTX = F.linear(x_BTD, self.wqkv.to(x_BTD.dtype))
        qkv_BTNd = qkv_BTX.view(*x_BTD.shape[:2], heads + 2 * kv_heads, self.head_dim)
        qk_BTNd, v_BTKd = qkv_BTNd.split_with_sizes([heads + kv_heads, kv_heads], dim=2)
        q_BTHd, k_BTKd = rotate(qk_BTNd, table).split_with_sizes([heads, kv_heads], dim=2)
        if cache is None:
            # The backward keeps the values; as a view they would keep all of qkv alive.
            out_BTHd = self._attend(q_BTHd, k_BTKd, v_BTKd.contiguous())
        else:
            out_BTHd = self._attend_cached(q_BTHd, *cache.extend(k_BTKd, v_BTKd))
        return F.linear(out_BTHd.flatten(2), self.wo.to(x_BTD.dtype))

    def _attend(self, q_BTHd: Tensor, k_BTKd: Tensor, v_BTKd: Tensor) -> Tensor:
        if self.kernel == "math":
            return attend_math(q_BTHd, k_BTKd, v_BTKd, self.sinks, self.window)
        if self.kernel == "flash":
            return attend_flash(q_BTHd, k_BTKd, v_BTKd, self.sinks, self.window)
        return attend_cudnn(q_BTHd, k_BTKd, v_BTKd, self.sinks)

    def _attend_cached(self, q_BTHd: Tensor, k_BSKd: Tensor, v_BSKd: Tensor) -> Tensor:
        # cuDNN's causal mask starts at the first key, not at the last query's: a plan that
        # names cuDNN for training serves from the cache through FlashAttention-2 (docs/model.md).
        attend = attend_math if self.kernel == "math" else attend_flash
        window = self.window
        if window is not None and k_BSKd.shape[1] <= window:
            window = None
        return attend(q_BTHd, k_BSKd, v_BSKd, self.sinks, window)


def require_inputs(kernel: AttentionKernel, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse inputs that a fused kernel cannot take, before it is called.

    Raises:
        DeviceError: the device or the compute dtype is not one of the kernel's.
    """
    if kernel == "math":
        return
    if dtype not in (torch.bfloat16, torch.float16):
        raise DeviceError(
            f"the {kernel} attention kernel takes bf16, not {dtype}: run under autocast, cast "
            "the model, or set model.attention.backend to math"
        )
    if device.type != "cuda":
        raise DeviceError(
            f"the {kernel} attention kernel runs on a GPU, not on {device.type}: build for "
            "--target cpu, or set model.attention.backend to math"
        )


def _require_shape(kernel: AttentionKernel, kind: LayerKind, head_dim: int) -> None:
    if kernel == "math":
        return
    if kernel == "cudnn" and kind == "window":
        raise InputError(
            "cuDNN's attention in PyTorch has no window; window layers need flash or math"
        )
    widest = _WIDEST_HEAD[kernel]
    if head_dim % 8 or head_dim > widest:
        raise InputError(
            f"the {kernel} attention kernel needs a head_dim that is a multiple of 8 and at most "
            f"{widest}, not {head_dim}; set model.attention.backend to math"
        )
