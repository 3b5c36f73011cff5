from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN004",
    title="the second moment is averaged over more steps than the first",
    why="AdamW divides the mean gradient by the root of the mean square. When the square "
    "forgets faster than the mean, single large gradients are not damped; swapped values are "
    "the likely reason.",
    bad="training: {optimizer: {betas: [0.95, 0.9]}}",
    good="training: {optimizer: {betas: [0.9, 0.95]}}",
    severity=Severity.ADVICE,
    reads=("training.optimizer.betas",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is None:
        return
    first, second = spec.training.optimizer.betas
    if first > second:
        yield Problem(
            "training.optimizer.betas",
            f"betas are [{first:g}, {second:g}]: the first is above the second",
            f"swap them: [{second:g}, {first:g}]",
        )
