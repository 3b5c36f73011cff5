"""Rotary position embedding, YaRN and partial rotation.

RoPE (Su et al. 2021, arXiv:2104.09864) turns dimension i together with dimension i + r/2,
as openai/gpt-oss and Hugging Face do. YaRN (Peng et al. 2023, arXiv:2309.00071) divides the
slow frequencies by the context factor, leaves the fast ones, ramps between, and scales cos
and sin. Where only the first r of d dimensions turn, everything here, YaRN's range included,
is computed as for a head of r dimensions; the other d − r are untouched, by the scale too.

The tables are computed from the spec at every forward pass, once for all layers of a kind:
there is no buffer to leave uninitialised, to cast, or to save.

Legend: B sequences, T positions, H query heads, K key/value heads, N heads, d head width,
r rotated dimensions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gptoss_builder.errors import InputError
from gptoss_builder.model.norm import wide_dtype
from gptoss_builder.spec.schema import AttentionSpec, LayerKind, YarnSpec


class RopeTable(NamedTuple):
    """Rotation of some positions: `x · cos + x[partner] · sin`, YaRN's magnitude included."""

    cos_Td: Tensor
    """1 where a dimension stays."""
    sin_Td: Tensor
    """Negative for the first half of the rotated dimensions; 0 where a dimension stays."""
    partner_d: Tensor
    """The dimension that each one turns with, int64; its own where it stays."""


def rotary_dims(attention: AttentionSpec, kind: LayerKind) -> int:
    """Dimensions of a head that a layer of this kind rotates.

    Raises:
        InputError: `full_layers_rotary · head_dim` or `head_dim` is no even whole number.
    """
    part = attention.rope.full_layers_rotary if kind == "full" else 1.0
    exact = part * attention.head_dim
    dims = round(exact)
    if abs(exact - dims) > 1e-6 * attention.head_dim or dims < 2 or dims % 2:
        raise InputError(
            f"rotary dimensions of {kind} layers come to {exact:g} of head_dim "
            f"{attention.head_dim}; they must be an even whole number of at least 2: change "
            "model.attention.rope.full_layers_rotary or model.attention.head_dim"
        )
    return dims


def yarn_range(yarn: YarnSpec, theta: float, dims: int) -> tuple[float, float]:
    """First and last frequency index of YaRN's ramp, as real numbers: nothing is rounded.

    An index is where a frequency makes `beta` turns over the original context. The bounds 0
    and dims − 1 are those of the authors' code; they matter to very short contexts only.

    Raises:
        InputError: `beta_fast` is not above `beta_slow`.
    """
    if yarn.beta_fast <= yarn.beta_slow:
        raise InputError(
            f"yarn.beta_fast is {yarn.beta_fast:g} and yarn.beta_slow {yarn.beta_slow:g}; "
            "beta_fast must be the larger"
        )

    def index(turns: float) -> float:
        return dims * math.log(yarn.original_context / (turns * math.tau)) / (2 * math.log(theta))

    return max(index(yarn.beta_fast), 0.0), min(index(yarn.beta_slow), dims - 1.0)


def yarn_magnitude(yarn: YarnSpec | None) -> float:
    """What cos and sin are multiplied by; the logits get its square."""
    if yarn is None:
        return 1.0
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    return 0.1 * math.log(yarn.factor) + 1.0 if yarn.factor > 1 else 1.0


def frequencies(
    theta: float, yarn: YarnSpec | None, dims: int, device: torch.device | str | None = None
) -> Tensor:
    """Radians a position for each pair of dimensions, [dims/2] in fp64."""
    index_h = torch.arange(dims // 2, dtype=torch.float64, device=device)
    plain_h = torch.pow(theta, -2.0 * index_h / dims)
    if yarn is None:
        return plain_h
    low, high = yarn_range(yarn, theta, dims)
    # An empty ramp is a step; the width is the one that the authors' code puts there.
    ramp_h = ((index_h - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return plain_h * (1.0 - ramp_h) + plain_h / yarn.factor * ramp_h


def rope_table(
    attention: AttentionSpec,
    kind: LayerKind,
    start: int,
    length: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> RopeTable:
    """Table of positions `start … start + length − 1` for a layer of this kind.

    Angles are taken in fp64, because an fp32 product of a position near 131,072 is off by
    thousandths of a radian; cosines and sines, [T, d], are fp32 or the wider of it and `dtype`.
    """
    rope, dims = attention.rope, rotary_dims(attention, kind)
    frequency_r = frequencies(rope.theta, rope.yarn, dims, device).repeat(2)
    position_T = torch.arange(start, start + length, dtype=torch.float64, device=device)
    angle_Tr = position_T[:, None] * frequency_r
    magnitude, wide = yarn_magnitude(rope.yarn), wide_dtype(dtype)
    stay = attention.head_dim - dims
    sin_Tr = angle_Tr.sin() * magnitude
    sin_Tr[:, : dims // 2] *= -1
    index_d = torch.arange(attention.head_dim, device=device)
    partner_r = index_d[:dims].roll(dims // 2)
    return RopeTable(
        F.pad((angle_Tr.cos() * magnitude).to(wide), (0, stay), value=1.0),
        F.pad(sin_Tr.to(wide), (0, stay)),
        torch.cat([partner_r, index_d[dims:]]),
    )


def rotate(x_BTNd: Tensor, table: RopeTable, *, back: bool = False) -> Tensor:
    """Rotate each head, or `back`: the transpose. Same shape and dtype as `x`."""
    wide_BTNd = x_BTNd * table.cos_Td[:, None]
    partner_BTNd = x_BTNd[..., table.partner_d]
    # a dimension and its partner have opposite sines
    wide_BTNd.addcmul_(partner_BTNd, table.sin_Td[:, None], value=-1 if back else 1)
    del partner_BTNd  # not beside the result
    return wide_BTNd.to(x_BTNd.dtype)


def rotate_qkv(
    qkv_BTNd: Tensor, table: RopeTable, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [B, T, H, d] and keys [B, T, K, d], and values as they are, contiguous.

    The gradient is written by hand: one pass over memory, where autograd's own takes two.
    """
    q_BTHd, k_BTKd, v_BTKd = _RotateQKV.apply(qkv_BTNd, *table, heads, kv_heads)  # type: ignore[no-untyped-call]  # torch
    return q_BTHd, k_BTKd, v_BTKd


class _RotateQKV(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv_BTNd: Tensor,
        cos_Td: Tensor,
        sin_Td: Tensor,
        partner_d: Tensor,
        heads: int,
        kv_heads: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        table = RopeTable(cos_Td, sin_Td, partner_d)
        ctx.save_for_backward(*table)
        qk_BTNd, v_BTKd = qkv_BTNd.split_with_sizes([heads + kv_heads, kv_heads], dim=2)
        q_BTHd, k_BTKd = rotate(qk_BTNd, table).split_with_sizes([heads, kv_heads], dim=2)
        # the backward of attention keeps the values; as a view they would keep all of qkv alive
        return q_BTHd, k_BTKd, v_BTKd.contiguous()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dq_BTHd: Tensor, dk_BTKd: Tensor, dv_BTKd: Tensor
    ) -> tuple[Tensor | None, ...]:
        table = RopeTable(*ctx.saved_tensors)
        turned = (rotate(dq_BTHd, table, back=True), rotate(dk_BTKd, table, back=True), dv_BTKd)
        return torch.cat(turned, dim=2), None, None, None, None, None
