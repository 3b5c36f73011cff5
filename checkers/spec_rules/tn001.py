from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN001",
    title="warm-up ends before the run does",
    why="The rate rises over warmup_steps and falls over the rest. With no step left it never "
    "falls, and a longer warm-up never even reaches the peak.",
    bad="training: {steps: 100, optimizer: {lr: 4e-4, warmup_steps: 100}}",
    good="training: {steps: 100, optimizer: {lr: 4e-4, warmup_steps: 10}}",
    reads=("training.steps", "training.optimizer.warmup_steps"),
    before_plan=False,
)
def rule(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    if training is None:
        return
    warmup = training.optimizer.warmup_steps
    if warmup >= training.steps:
        yield Problem(
            "training.optimizer.warmup_steps",
            f"warmup_steps is {warmup}, and the run has {training.steps} steps",
            f"set warmup_steps below {training.steps}, such as {training.steps // 20}",
        )
