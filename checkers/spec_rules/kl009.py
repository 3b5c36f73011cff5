from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.errors import LaunchError
from gptoss_builder.findings import Severity
from gptoss_builder.plan.launch import choose
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target


@partial(
    TargetRule,
    code="KL009",
    title="an own tile is no worse than the one that was timed on the card",
    why="Where the table has a configuration that was measured on the architecture, another "
    "one is a claim that it is faster. Time both before you keep it.",
    bad="model: {moe: {dispatch: triton_grouped}}\n"
    "kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}\n"
    "target: {gpu: h200}",
    good="model: {moe: {dispatch: triton_grouped}}\nkernel: auto\ntarget: {gpu: h200}",
    severity=Severity.ADVICE,
    reads=(
        "kernel",
        "model.d_model",
        "model.moe.d_ff",
        "model.moe.dispatch",
        "training.precision",
    ),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel == "auto" or spec.model.moe.dispatch != "triton_grouped":
        return
    precision = spec.training.precision if spec.training is not None else "bf16"
    try:
        best = choose(target.arch, precision, spec.model.d_model, spec.model.moe.d_ff, "auto")
    except LaunchError:
        return
    own = spec.kernel.model_dump()
    if best.source == "measured" and own != best.model_dump(include=set(own)):
        yield Problem(
            "kernel",
            f"the table's configuration for {target.arch} was timed: {best.evidence}",
            "set kernel: auto, or suppress this advice with your own timing as the reason",
        )
