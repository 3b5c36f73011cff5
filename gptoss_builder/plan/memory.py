"""Bytes of training and of serving, by moment and kind of tensor: what must fit on the card.

`training_memory` and `serving_memory` walk over the moments of a step; here the largest becomes
a peak, and the peak what the caching allocator reserves for it. Pure Python: it runs on a
laptop in a fraction of a millisecond. How it is checked, and how far off it is, stands in
docs/memory.md.
"""

from __future__ import annotations

from typing import Literal

from gptoss_builder.plan.schema import (
    Execution,
    KVCache,
    Memory,
    MemoryEstimate,
    Moment,
    ParameterCounts,
)
from gptoss_builder.plan.serving_memory import serving_moments
from gptoss_builder.plan.training_memory import training_moments
from gptoss_builder.spec.schema import Spec

MIB = 2**20
WORKSPACE_BYTES = 32 * MIB
"""cuBLAS workspace of one handle and stream, allocated through the caching allocator. Measured on
an H200 with torch 2.11, whose default on other architectures is 8.1 MiB; later versions take
32 MiB on sm100 and sm120 too. Taken as 32 everywhere."""
HANDLES = {"training": 2, "serving": 1}
"""cuBLAS handles are made a thread, and the backward runs on a thread of its own."""
FRAGMENTATION = 0.03
"""Part of the peak that the caching allocator reserves on top, with expandable segments: above
the most that was measured in 29 specs, 1.5% (docs/memory.md)."""
PAGES_BYTES = (20 + 2) * MIB
"""A page of each of the allocator's two pools: the last one mapped is never full."""
CONTEXT_BYTES = 648_871_936
"""The CUDA context: measured on an H200 (driver 580.159.04, torch 2.11, CUDA 13.0), and assumed
for every other card."""


def estimate_memory(
    spec: Spec, execution: Execution, parameters: ParameterCounts, cache: KVCache | None
) -> Memory:
    """Peaks of training and of serving; each None where the spec does not ask for it."""
    training = serving = None
    if spec.training is not None:
        training = _estimate(training_moments(spec, execution, parameters), execution, "training")
    if spec.inference is not None and cache is not None:
        moments = serving_moments(spec, execution, parameters, spec.inference, cache)
        serving = _estimate(moments, execution, "serving")
    return Memory(training=training, inference=serving)


def _estimate(
    moments: tuple[Moment, ...], execution: Execution, use: Literal["training", "serving"]
) -> MemoryEstimate:
    peak = max(moments, key=lambda moment: moment.allocated_bytes)
    allocated = reserved = peak.allocated_bytes
    context = 0
    if execution.device == "cuda":
        allocated += HANDLES[use] * WORKSPACE_BYTES
        reserved = allocated + int(FRAGMENTATION * allocated) + PAGES_BYTES
        context = CONTEXT_BYTES
    return MemoryEstimate(
        moments=moments,
        peak=peak.name,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        context_bytes=context,
        total_bytes=reserved + context,
    )
