from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from checkers.wording import either, multiples_near
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT006",
    title="the pattern divides the layers evenly",
    why="A last, incomplete turn changes the share of full layers, and with it the cache.",
    bad="model: {layers: 5, attention: {pattern: [window, full], window: 128}}",
    good="model: {layers: 4, attention: {pattern: [window, full], window: 128}}",
    severity=Severity.ADVICE,
    reads=("model.layers", "model.attention.pattern"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    layers, pattern = spec.model.layers, spec.model.attention.pattern
    if len(pattern) < layers and layers % len(pattern):
        yield Problem(
            "model.attention.pattern",
            f"{layers} layers are not a multiple of the pattern's {len(pattern)}",
            f"set layers to {either(multiples_near(layers, len(pattern), 4096))}, "
            "or list every layer",
        )
