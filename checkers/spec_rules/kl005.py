from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="KL005",
    title="a kernel block is there only for the kernel",
    why="Only triton_grouped launches the kernel; with another dispatch the block is read by "
    "nobody.",
    bad="model: {moe: {dispatch: stacked}}\n"
    "kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}",
    good="model: {moe: {dispatch: stacked}}\nkernel: auto",
    severity=Severity.ADVICE,
    reads=("model.moe.dispatch", "kernel"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    dispatch = spec.model.moe.dispatch
    if spec.kernel != "auto" and dispatch != "triton_grouped":
        yield Problem(
            "kernel",
            f"kernel has a launch configuration, but dispatch is {dispatch}",
            "set kernel: auto, or model.moe.dispatch: triton_grouped",
        )
