"""The oracle of the W1/W3 op: one expert at a time, in plain PyTorch with plain autograd."""

# R rows sorted by expert, T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def w1w3_reference(
    x_TD: Tensor, w13_EFD: Tensor, offsets_E: Tensor, rows_R: Tensor | None = None
) -> Tensor:
    """Compute `silu(x W1ᵀ) · (x W3ᵀ)` for each expert's rows.

    Args:
        x_TD: tokens, or rows already sorted by expert when `rows_R` is None.
        w13_EFD: `[E, 2F, D]`, gate rows (W1) first.
        offsets_E: the end of each expert's rows; the last is R.
        rows_R: the token of each row; None when `x_TD` is sorted already.

    Returns:
        `[R, F]` of the dtype of `x_TD`.
    """
    x_RD = x_TD if rows_R is None else x_TD[rows_R]
    d_ff = w13_EFD.shape[1] // 2
    parts, start = [], 0
    for expert, end in enumerate(offsets_E.tolist()):
        gate = x_RD[start:end] @ w13_EFD[expert, :d_ff].T
        up = x_RD[start:end] @ w13_EFD[expert, d_ff:].T
        parts.append(functional.silu(gate) * up)
        start = end
    return torch.cat(parts)
