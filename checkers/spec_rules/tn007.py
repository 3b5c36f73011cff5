from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN007",
    title="the NaN guard is off only with a recorded consent",
    why="One step that is not finite turns every weight into NaN, and clipping does not help. "
    "Whoever trains without the guard must say so, and the run records it.",
    bad="training: {nan_guard: {enabled: false}}",
    good="training: {nan_guard: {enabled: false, consent: comparing with a run without it}}",
    reads=("training.nan_guard.enabled", "training.nan_guard.consent"),
    before_plan=False,
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is None:
        return
    guard = spec.training.nan_guard
    if not guard.enabled and (guard.consent is None or not guard.consent.strip()):
        yield Problem(
            "training.nan_guard.enabled",
            "the NaN guard is off, and no consent says why",
            "set enabled: true, or add consent: <your reason> beside it",
        )
