from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec

LARGEST = 1e-3


@partial(
    SpecRule,
    code="TN005",
    title="AdamW's eps is small beside the gradients",
    why="eps is added to the root of the mean square gradient. Once it is larger than that "
    "root, AdamW is plain momentum with a tiny rate.",
    bad="training: {optimizer: {eps: 0.1}}",
    good="training: {optimizer: {eps: 1e-8}}",
    severity=Severity.ADVICE,
    reads=("training.optimizer.eps",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is not None and spec.training.optimizer.eps > LARGEST:
        yield Problem(
            "training.optimizer.eps",
            f"eps is {spec.training.optimizer.eps:g}, larger than most gradients",
            "set it between 1e-8 and 1e-6",
        )
