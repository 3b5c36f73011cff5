from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.facts import precision
from checkers.rule import Problem, TargetRule
from gptoss_builder.plan.launch import of_spec, shape_problems
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target

TENSOR_MEMORY = ("sm100", "sm103")
"""Architectures that accumulate bf16 products in tensor memory."""
TENSOR_MEMORY_WORDS = 128 * 512
"""32-bit words of tensor memory of a multiprocessor: 128 lanes, 512 columns (PTX ISA)."""


@partial(
    TargetRule,
    code="KL004",
    title="the accumulators fit",
    why="Gate and up are accumulated in fp32, 2 · block_t · block_n words a block: in the "
    "registers of its threads, 255 each, or on sm100 in tensor memory. What does not fit "
    "spills, at a fraction of the speed, or compiles into a trap.",
    bad="kernel: {block_t: 128, block_k: 32, block_n: 128, num_warps: 4, num_stages: 2}\n"
    "target: {gpu: h200}",
    good="kernel: {block_t: 128, block_k: 32, block_n: 128, num_warps: 8, num_stages: 2}\n"
    "target: {gpu: h200}",
    reads=("kernel", "training.precision"),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel == "auto" or target.arch == "cpu" or shape_problems(of_spec(spec.kernel)):
        return
    kernel, arch = spec.kernel, ARCHITECTURES[target.arch]
    words = 2 * kernel.block_t * kernel.block_n
    if target.arch in TENSOR_MEMORY and precision(spec, target) == "bf16":
        if words > TENSOR_MEMORY_WORDS:
            yield Problem(
                "kernel.block_n",
                f"the accumulators are {words:,} words, and tensor memory has "
                f"{TENSOR_MEMORY_WORDS:,}",
                f"set block_n to {TENSOR_MEMORY_WORDS // (2 * kernel.block_t)}",
            )
        return
    each = words // (kernel.num_warps * arch.warp_size)
    if each > arch.registers_per_thread:
        yield Problem(
            "kernel.num_warps",
            f"the accumulators take {each} registers of each thread, of "
            f"{arch.registers_per_thread}",
            "double num_warps, or halve block_n",
        )
