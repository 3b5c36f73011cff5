from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT002",
    title="a pattern with window layers says how wide the window is",
    why="Without a width nobody knows which keys a window layer sees, and any default would be "
    "a guess about the model.",
    bad="model: {attention: {pattern: [window, full], window: null}}",
    good="model: {attention: {pattern: [window, full], window: 128}}",
    reads=("model.attention.pattern", "model.attention.window"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    attention = spec.model.attention
    if "window" in attention.pattern and attention.window is None:
        yield Problem(
            "model.attention.pattern",
            "the pattern has window layers, but model.attention.window is not set",
            "add window under attention, such as window: 128, or make every layer full",
        )
