from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from checkers.rule import CompileRule, Problem
from gptoss_builder.spec.schema import Spec

if TYPE_CHECKING:
    from gptoss_builder.plan.aot import CompileReport


@partial(
    CompileRule,
    code="KL011",
    title="the kernel compiles for the card, and does not spill",
    why="What arithmetic cannot foresee the compiler tells: registers that spill to memory, a "
    "trap in place of the kernel, shared memory above the limit. It needs Triton, takes a few "
    "seconds, and runs only with --compile.",
    bad="kernel: {block_t: 128, block_k: 32, block_n: 64, num_warps: 4, num_stages: 1}\n"
    "training: {precision: fp32}\ntarget: {gpu: t4}   # spills 520 bytes with Triton 3.9",
    good="kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 1}\n"
    "training: {precision: fp32}\ntarget: {gpu: t4}",
)
def rule(spec: Spec, report: CompileReport) -> Iterator[Problem]:
    launch = report.request.launch
    tile = f"{launch.block_t} × {launch.block_k} × {launch.block_n}"
    part = "forward" if report.request.write_h else "backward"
    field = "model.moe.dispatch" if spec.kernel == "auto" else "kernel"
    for problem in report.problems():
        message, _, fix = problem.partition("; ")
        yield Problem(
            field,
            f"compiled for {report.request.arch} with {tile}, {launch.num_warps} warps and "
            f"{launch.num_stages} stages, the kernel of the {part} {message}",
            fix or "set another kernel: block, or model.moe.dispatch: stacked",
        )
