"""Attention by an explicit softmax: any device, any dtype, gradients by autograd.

It is obvious before it is fast: what the fused kernels are compared with, and what runs
where there are none. Its memory grows with the visible part of the T × S scores.

Legend: B sequences, T queries, S keys, H query heads, K key/value heads, G = H/K query
heads of one key head, d head width; c queries and s keys of one chunk, R = G·c.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gptoss_builder.model.norm import wide_dtype

QUERY_CHUNK = 256
"""Queries at a time; keys that no query of a chunk sees are never multiplied."""


def visible(query_c: Tensor, key_s: Tensor, window: int | None) -> Tensor:
    """Which keys each query sees, [c, s] booleans, from their positions."""
    distance_cs = query_c[:, None] - key_s
    seen_cs = distance_cs >= 0
    return seen_cs if window is None else seen_cs & (distance_cs < window)


def attend_math(
    q_BTHd: Tensor, k_BSKd: Tensor, v_BSKd: Tensor, sink_H: Tensor | None, window: int | None
) -> Tensor:
    """Causal grouped-query attention, the last query at the last key.

    Args:
        q_BTHd: Queries, already rotated.
        k_BSKd: Keys, already rotated; S ≥ T, and query i stands at key S − T + i.
        v_BSKd: Values.
        sink_H: One logit a query head that joins the softmax and adds no value; None is none.
        window: Keys that a query sees, its own included; None is all before it.

    Returns:
        [B, T, H, d] in the dtype of the queries; scores and softmax are fp32 or wider.
    """
    batch, queries, heads, width = q_BTHd.shape
    keys, kv_heads = k_BSKd.shape[1:3]
    wide = wide_dtype(q_BTHd.dtype)
    scaled_BTHd = q_BTHd.to(wide) * width**-0.5
    q_BKGTd = scaled_BTHd.view(batch, queries, kv_heads, heads // kv_heads, width).permute(
        0, 2, 3, 1, 4
    )
    k_BKdS = k_BSKd.to(wide).permute(0, 2, 3, 1)
    v_BKSd = v_BSKd.to(wide).transpose(1, 2)
    past = keys - queries
    outs = []
    for start in range(0, queries, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, queries)
        first = 0 if window is None else max(0, past + start - window + 1)
        last = past + stop
        shape_BKGc = (*q_BKGTd.shape[:3], stop - start)
        q_BKRd = q_BKGTd[:, :, :, start:stop].flatten(2, 3)
        score_BKGcs = (q_BKRd @ k_BKdS[..., first:last]).view(*shape_BKGc, last - first)
        seen_cs = visible(
            torch.arange(past + start, last, device=q_BTHd.device),
            torch.arange(first, last, device=q_BTHd.device),
            window,
        )
        score_BKGcs = score_BKGcs.masked_fill(~seen_cs, -torch.inf)
        weight_BKGcs = _softmax(score_BKGcs, sink_H)
        out_BKRd = weight_BKGcs.flatten(2, 3) @ v_BKSd[:, :, first:last]
        outs.append(out_BKRd.view(*shape_BKGc, width))
    if not outs:
        return torch.zeros_like(q_BTHd)
    out_BKGTd = torch.cat(outs, dim=3)
    return out_BKGTd.permute(0, 3, 1, 2, 4).reshape(batch, queries, heads, width).to(q_BTHd.dtype)


def _softmax(score_BKGcs: Tensor, sink_H: Tensor | None) -> Tensor:
    if sink_H is None:
        return score_BKGcs.softmax(-1)
    sink_KG11 = sink_H.to(score_BKGcs.dtype).view(*score_BKGcs.shape[1:3], 1, 1)
    column = sink_KG11.expand(*score_BKGcs.shape[:-1], 1)
    return torch.cat([score_BKGcs, column], dim=-1).softmax(-1)[..., :-1]
