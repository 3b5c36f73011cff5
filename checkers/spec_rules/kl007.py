from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target


@partial(
    TargetRule,
    code="KL007",
    title="pipeline stages are asked for only where there is a pipeline",
    why="Software pipelining needs asynchronous copies, which sm75 does not have: Triton "
    "compiles the same code whatever num_stages says.",
    bad="kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 3}\n"
    "target: {gpu: t4}",
    good="kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 1}\n"
    "target: {gpu: t4}",
    severity=Severity.ADVICE,
    reads=("kernel",),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel != "auto" and target.arch == "sm75" and spec.kernel.num_stages > 1:
        yield Problem(
            "kernel.num_stages",
            f"num_stages is {spec.kernel.num_stages}, and {target.name} (sm75) cannot pipeline",
            "set it to 1",
        )
