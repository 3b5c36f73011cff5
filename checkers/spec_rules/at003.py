from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT003",
    title="a window is set only where some layer uses it",
    why="A width that no layer reads suggests that the pattern is not what was meant: every "
    "layer keeps the whole context in its cache.",
    bad="model: {attention: {pattern: [full], window: 128}}",
    good="model: {attention: {pattern: [window, full], window: 128}}",
    severity=Severity.ADVICE,
    reads=("model.attention.pattern", "model.attention.window"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    attention = spec.model.attention
    if attention.window is not None and "window" not in attention.pattern:
        yield Problem(
            "model.attention.window",
            f"window is {attention.window}, but the pattern has no window layer",
            "put window into the pattern, such as [window, full], or remove the width",
        )
