from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN008",
    title="a consent stands beside a guard that is off",
    why="A consent to something that does not happen misleads the reader of the spec.",
    bad="training: {nan_guard: {enabled: true, consent: an old experiment}}",
    good="training: {nan_guard: {enabled: true}}",
    severity=Severity.ADVICE,
    reads=("training.nan_guard.enabled", "training.nan_guard.consent"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is None:
        return
    guard = spec.training.nan_guard
    if guard.enabled and guard.consent is not None:
        yield Problem(
            "training.nan_guard.consent",
            "the NaN guard is on, so the consent has no effect",
            "remove consent, or set enabled: false",
        )
