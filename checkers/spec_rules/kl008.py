from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.findings import Severity
from gptoss_builder.plan.launch import of_spec, shape_problems
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target

ROOM = 128
"""Accumulator registers of a thread from which compiles for these architectures spilled."""
WITHOUT_ROOM = ("sm80", "sm86", "sm120")


@partial(
    TargetRule,
    code="KL008",
    title="the accumulators leave registers for the rest",
    why="Operands and addresses need registers too. On sm80, sm86 and sm120 a tile of "
    "128 × 128 with 8 warps, 128 accumulators a thread, spilled when it was compiled; on sm90 "
    "it did not.",
    bad="kernel: {block_t: 128, block_k: 64, block_n: 128, num_warps: 8, num_stages: 2}\n"
    "target: {gpu: a100-80gb}",
    good="kernel: {block_t: 128, block_k: 64, block_n: 64, num_warps: 8, num_stages: 2}\n"
    "target: {gpu: a100-80gb}",
    severity=Severity.ADVICE,
    reads=("kernel",),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel == "auto" or target.arch not in WITHOUT_ROOM:
        return
    kernel, arch = spec.kernel, ARCHITECTURES[target.arch]
    each = 2 * kernel.block_t * kernel.block_n // (kernel.num_warps * arch.warp_size)
    if ROOM <= each <= arch.registers_per_thread and not shape_problems(of_spec(kernel)):
        yield Problem(
            "kernel.block_n",
            f"the accumulators take {each} of {arch.registers_per_thread} registers a thread, "
            f"which spilled on {target.arch}",
            "halve block_n or double num_warps",
        )
