from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from checkers.wording import divisors_near, either
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="CK002",
    title="the checkpoint period divides the layers",
    why="A last, shorter run of stored layers means that the saving is less even than the "
    "period says; a divisor makes every run equally long.",
    bad="model: {layers: 12}\ntraining: {checkpoint_every: 5}",
    good="model: {layers: 12}\ntraining: {checkpoint_every: 4}",
    severity=Severity.ADVICE,
    reads=("model.layers", "training.checkpoint_every"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training, layers = spec.training, spec.model.layers
    if training is None or not 0 < training.checkpoint_every < layers:
        return
    period = training.checkpoint_every
    even = divisors_near(layers, period, layers // 2)
    if layers % period and even != (1,):  # Where layers are prime no period is even.
        yield Problem(
            "training.checkpoint_every",
            f"a period of {period} does not divide the {layers} layers",
            f"set it to {either(even)}",
        )
