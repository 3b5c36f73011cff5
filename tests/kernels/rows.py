"""Rows sorted by expert, with the counts that go wrong first: none, one, one past a tile."""

from __future__ import annotations

import torch
from torch import Tensor

from gptoss_builder.plan.schema import LaunchConfig


def launch(
    block_t: int = 16,
    block_k: int = 32,
    block_n: int = 16,
    *,
    num_warps: int = 4,
    num_stages: int = 1,
    descriptors: bool = False,
    persistent: bool = False,
) -> LaunchConfig:
    return LaunchConfig(
        block_t=block_t,
        block_k=block_k,
        block_n=block_n,
        num_warps=num_warps,
        num_stages=num_stages,
        loads="descriptors" if descriptors else "pointers",
        persistent=persistent,
        source="spec",
        evidence="test",
    )


def offsets(counts: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor(counts, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)


def inputs(
    counts: list[int],
    d_model: int,
    d_ff: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """x `[R, D]` and w13 `[E, 2F, D]`, which want gradients, and the offsets."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), d_model, generator=generator, dtype=torch.float64)
    w13 = torch.randn(len(counts), 2 * d_ff, d_model, generator=generator, dtype=torch.float64)
    w13 /= d_model**0.5
    return (
        x.to(device, dtype).requires_grad_(),
        w13.to(device, dtype).requires_grad_(),
        offsets(counts, device),
    )
