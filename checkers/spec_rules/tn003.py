from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec

USUAL = 1e-2
LARGEST = 0.1


@partial(
    SpecRule,
    code="TN003",
    title="the learning rate is in the usual range",
    why="Language models of this kind train with AdamW at peaks between 1e-5 and 1e-2; outside "
    "of that a misplaced exponent is the likely reason.",
    bad="training: {optimizer: {lr: 4e-2}}",
    good="training: {optimizer: {lr: 4e-4}}",
    severity=Severity.ADVICE,
    reads=("training.optimizer.lr",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is None:
        return
    lr = spec.training.optimizer.lr
    if USUAL < lr <= LARGEST or lr < 1e-7:
        yield Problem(
            "training.optimizer.lr",
            f"lr is {lr:g}, outside of the usual 1e-5 to 1e-2",
            "check the exponent; 4e-4 is a usual peak",
        )
