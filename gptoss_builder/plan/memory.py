"""Bytes of training and of serving, by moment and kind of tensor: what must fit on the card.

`training_memory` and `serving_memory` walk over the moments of a step; here the largest becomes
a peak, and the peak what the caching allocator reserves for it. Pure Python: it runs on a
laptop in a fraction of a millisecond. How it is checked, and how far off it is, stands in
docs/memory.md.
"""

from __future__ import annotations

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
"""cuBLAS workspace of one handle and stream: PyTorch's default on Hopper."""
FRAGMENTATION = 0.03
"""Part of the peak that the caching allocator reserves on top, with expandable segments: the most
of ten specs whose allocations were replayed (docs/memory.md)."""
CONTEXT_BYTES = 512 * MIB
"""The CUDA context with PyTorch's kernels in it."""


def estimate_memory(
    spec: Spec, execution: Execution, parameters: ParameterCounts, cache: KVCache | None
) -> Memory:
    """Peaks of training and of serving; each None where the spec does not ask for it."""
    training = serving = None
    if spec.training is not None:
        training = _estimate(training_moments(spec, execution, parameters), execution)
    if spec.inference is not None and cache is not None:
        moments = serving_moments(spec, execution, parameters, spec.inference, cache)
        serving = _estimate(moments, execution)
    return Memory(training=training, inference=serving)


def _estimate(moments: tuple[Moment, ...], execution: Execution) -> MemoryEstimate:
    peak = max(moments, key=lambda moment: moment.allocated_bytes)
    cuda = execution.device == "cuda"
    allocated = peak.allocated_bytes + (WORKSPACE_BYTES if cuda else 0)
    reserved = allocated + int(FRAGMENTATION * allocated) if cuda else allocated
    context = CONTEXT_BYTES if cuda else 0
    return MemoryEstimate(
        moments=moments,
        peak=peak.name,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        context_bytes=context,
        total_bytes=reserved + context,
    )
