"""Bytes of training and of serving, by moment and kind of tensor: what must fit on the card.

`training_memory` and `serving_memory` walk over the moments of a step; here the largest becomes
a peak, and the peak what the caching allocator reserves for it. Pure Python: it runs on a
laptop in a fraction of a millisecond. How it is checked, and how far off it is, stands in
docs/memory.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gptoss_builder.plan.schema import (
    Execution,
    KVCache,
    Memory,
    MemoryEstimate,
    ParameterCounts,
)
from gptoss_builder.plan.serving_memory import serving_sums
from gptoss_builder.plan.tape import Sum
from gptoss_builder.plan.training_memory import training_sums
from gptoss_builder.spec.schema import Spec

MIB = 2**20
WORKSPACE_BYTES = 32 * MIB
"""cuBLAS workspace of one handle and stream, allocated through the caching allocator. Measured on
an H200 with torch 2.11, whose default on other architectures is 8.1 MiB; later versions take
32 MiB on sm100 and sm120 too. Taken as 32 everywhere."""
HANDLES = {"training": 2, "serving": 1}
"""cuBLAS handles are made a thread, and the backward runs on a thread of its own."""
FRAGMENTATION = 0.03
"""Part of the peak that the caching allocator reserves on top, with expandable segments: above the
most that replays of ten specs gave, 2.9%. Of 29 on an H200 one reserved more (docs/memory.md)."""
PAGES_BYTES = (20 + 2) * MIB
"""A page of each of the allocator's two pools: the last one mapped is never full."""
CONTEXT_BYTES = 648_871_936
"""The CUDA context: measured on an H200 (driver 580.159.04, torch 2.11, CUDA 13.0), and assumed
for every other card."""


class Peak(NamedTuple):
    """The largest moment and what it takes, in bytes."""

    name: str
    allocated_bytes: int
    reserved_bytes: int
    context_bytes: int

    @property
    def total_bytes(self) -> int:
        """What must fit beside the margin."""
        return self.reserved_bytes + self.context_bytes


def estimate_memory(
    spec: Spec, execution: Execution, parameters: ParameterCounts, cache: KVCache | None
) -> Memory:
    """Peaks of training and of serving; each None where the spec does not ask for it."""
    training = serving = None
    if spec.training is not None:
        training = _estimate(training_sums(spec, execution, parameters), execution, "training")
    if spec.inference is not None and cache is not None:
        sums = serving_sums(spec, execution, parameters, spec.inference, cache)
        serving = _estimate(sums, execution, "serving")
    return Memory(training=training, inference=serving)


def training_peak(spec: Spec, execution: Execution, parameters: ParameterCounts) -> Peak:
    """The peak of training alone, for those who try out many settings.

    Raises:
        ValueError: the spec has no training.
    """
    return _peak(training_sums(spec, execution, parameters), execution, "training")


def _peak(sums: tuple[Sum, ...], execution: Execution, use: Literal["training", "serving"]) -> Peak:
    largest = max(sums, key=lambda one: one.total)
    allocated = reserved = largest.total
    context = 0
    if execution.device == "cuda":
        allocated += HANDLES[use] * WORKSPACE_BYTES
        reserved = allocated + int(FRAGMENTATION * allocated) + PAGES_BYTES
        context = CONTEXT_BYTES
    return Peak(largest.name, allocated, reserved, context)


def _estimate(
    sums: tuple[Sum, ...], execution: Execution, use: Literal["training", "serving"]
) -> MemoryEstimate:
    peak = _peak(sums, execution, use)
    return MemoryEstimate(
        moments=tuple(one.moment() for one in sums),
        peak=peak.name,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        context_bytes=peak.context_bytes,
        total_bytes=peak.total_bytes,
    )
