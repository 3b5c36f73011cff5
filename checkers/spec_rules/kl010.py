from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="KL010",
    title="the pipeline is no deeper than the reduction is long",
    why="num_stages tiles are in flight at a time. With fewer steps than stages the rest is "
    "shared memory without use, and fewer blocks fit on a multiprocessor.",
    bad="model: {d_model: 128}\n"
    "kernel: {block_t: 64, block_k: 64, block_n: 64, num_warps: 4, num_stages: 4}",
    good="model: {d_model: 128}\n"
    "kernel: {block_t: 64, block_k: 64, block_n: 64, num_warps: 4, num_stages: 2}",
    severity=Severity.ADVICE,
    reads=("model.d_model", "kernel"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.kernel == "auto":
        return
    steps = -(-spec.model.d_model // spec.kernel.block_k)
    if spec.kernel.num_stages > steps:
        yield Problem(
            "kernel.num_stages",
            f"num_stages is {spec.kernel.num_stages}, and d_model {spec.model.d_model} is "
            f"{steps} step{'' if steps == 1 else 's'} of block_k {spec.kernel.block_k}",
            f"set it to {steps} or less",
        )
