from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="KL006",
    title="the kernel's step divides d_model",
    why="A last, partial step needs a mask on every load, and masked loads lose the "
    "asynchronous copies that num_stages is for.",
    bad="model: {d_model: 96, moe: {dispatch: triton_grouped}}\n"
    "kernel: {block_t: 64, block_k: 64, block_n: 64, num_warps: 4, num_stages: 3}",
    good="model: {d_model: 96, moe: {dispatch: triton_grouped}}\n"
    "kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 3}",
    severity=Severity.ADVICE,
    reads=("model.d_model", "kernel"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.kernel == "auto":
        return
    step, width = spec.kernel.block_k, spec.model.d_model
    if width % step:
        largest = width & -width
        yield Problem(
            "kernel.block_k",
            f"block_k is {step}, which does not divide d_model {width}",
            f"set it to {largest}" if 16 <= largest <= 256 else "set d_model to a multiple of it",
        )
