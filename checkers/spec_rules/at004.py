from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT004",
    title="the window is narrower than the context",
    why="A window as wide as the sequence sees everything: the layer is a full layer in all "
    "but name, and trains nothing that a window layer must do at a longer context.",
    bad="model: {attention: {pattern: [window, full], window: 4096}}\ntraining: {context: 4096}",
    good="model: {attention: {pattern: [window, full], window: 128}}\ntraining: {context: 4096}",
    severity=Severity.ADVICE,
    reads=(
        "model.attention.pattern",
        "model.attention.window",
        "training.context",
        "inference.context",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    attention = spec.model.attention
    window = attention.window
    if window is None or "window" not in attention.pattern:
        return
    contexts = {
        "training.context": spec.training.context if spec.training else 0,
        "inference.context": spec.inference.context if spec.inference else 0,
    }
    for field, context in contexts.items():
        if 0 < context <= window:
            yield Problem(
                "model.attention.window",
                f"window is {window}, and {field} is {context}: window layers see every key",
                f"set window below {context}, or make the layers full"
                if context > 1
                else f"make the layers full, or set {field} to more than 1",
            )
