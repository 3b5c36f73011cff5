"""Rotary position embedding, YaRN and partial rotation.

RoPE (Su et al. 2021, arXiv:2104.09864) turns dimension i together with dimension i + r/2,
as openai/gpt-oss and Hugging Face do. YaRN (Peng et al. 2023, arXiv:2309.00071) divides the
slow frequencies by the context factor, leaves the fast ones, ramps between, and scales cos
and sin. Where only the first r of d dimensions turn, everything here, YaRN's range included,
is computed as for a head of r dimensions; the other d − r are untouched, by the scale too.

The tables are computed from the spec at every forward pass, once for all layers of a kind:
there is no buffer to leave uninitialised, to cast, or to save.

Legend: T positions, N heads, d head width, r rotated dimensions, h = r/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gptoss_builder.errors import InputError
from gptoss_builder.model.norm import wide_dtype
from gptoss_builder.spec.schema import AttentionSpec, LayerKind, YarnSpec


class RopeTable(NamedTuple):
    """Cosines and sines of some positions, YaRN's magnitude included."""

    cos_Th: Tensor
    sin_Th: Tensor


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
    thousandths of a radian; the result, [T, r/2], is fp32 or the wider of it and `dtype`.
    """
    rope = attention.rope
    frequency_h = frequencies(rope.theta, rope.yarn, rotary_dims(attention, kind), device)
    position_T = torch.arange(start, start + length, dtype=torch.float64, device=device)
    angle_Th = position_T[:, None] * frequency_h
    magnitude = yarn_magnitude(rope.yarn)
    wide = wide_dtype(dtype)
    return RopeTable((angle_Th.cos() * magnitude).to(wide), (angle_Th.sin() * magnitude).to(wide))


def rotate(x_BTNd: Tensor, table: RopeTable) -> Tensor:
    """Rotate the first r = 2·h dimensions of each head; same shape and dtype as `x`."""
    half = table.cos_Th.shape[-1]
    cos_T1h, sin_T1h = table.cos_Th[:, None], table.sin_Th[:, None]
    wide = table.cos_Th.dtype
    first_h = x_BTNd[..., :half].to(wide)
    second_h = x_BTNd[..., half : 2 * half].to(wide)
    turned = (
        (first_h * cos_T1h - second_h * sin_T1h).to(x_BTNd.dtype),
        (second_h * cos_T1h + first_h * sin_T1h).to(x_BTNd.dtype),
        x_BTNd[..., 2 * half :],
    )
    return torch.cat(turned, dim=-1)
