from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN014",
    title="weight decay is below 1",
    why="AdamW multiplies the weights by 1 − lr · weight_decay at each step; a decay of 1 or "
    "more pulls the matrices to zero faster than they learn.",
    bad="training: {optimizer: {weight_decay: 10}}",
    good="training: {optimizer: {weight_decay: 0.1}}",
    severity=Severity.ADVICE,
    reads=("training.optimizer.weight_decay",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is not None and spec.training.optimizer.weight_decay >= 1:
        yield Problem(
            "training.optimizer.weight_decay",
            f"weight_decay is {spec.training.optimizer.weight_decay:g}",
            "set it to 0.1, or 0 for none",
        )
