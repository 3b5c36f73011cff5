from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT005",
    title="the pattern is not longer than the model",
    why="The pattern is repeated over the layers from layer 0; entries beyond the last layer "
    "describe layers that do not exist.",
    bad="model: {layers: 2, attention: {pattern: [window, full, window, full], window: 128}}",
    good="model: {layers: 4, attention: {pattern: [window, full, window, full], window: 128}}",
    reads=("model.layers", "model.attention.pattern"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    layers, pattern = spec.model.layers, spec.model.attention.pattern
    if len(pattern) > layers:
        yield Problem(
            "model.attention.pattern",
            f"the pattern names {len(pattern)} layers, but the model has {layers}",
            f"shorten the pattern to at most {layers}, or raise model.layers",
        )
