from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN012",
    title="periodic saves and evaluations happen within the run",
    why="An interval longer than the run never comes: a run that is interrupted has nothing to "
    "resume from.",
    bad="training: {steps: 1000, save_every: 2000}",
    good="training: {steps: 1000, save_every: 200}",
    severity=Severity.ADVICE,
    reads=("training.steps", "training.save_every", "training.eval_every"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    if training is None:
        return
    intervals = {"save_every": training.save_every, "eval_every": training.eval_every}
    for name, interval in intervals.items():
        if interval > training.steps:
            yield Problem(
                f"training.{name}",
                f"{name} is {interval}, and the run has {training.steps} steps",
                f"set it below {training.steps}, or to 0 for the end only",
            )
