from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT011",
    title="YaRN is there only to extend a context",
    why="With a factor of 1 YaRN changes nothing.",
    bad="model: {attention: {rope: {yarn: {factor: 1, original_context: 4096}}}}",
    good="model: {attention: {rope: {yarn: null}}}",
    severity=Severity.ADVICE,
    reads=("model.attention.rope.yarn.factor",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    yarn = spec.model.attention.rope.yarn
    if yarn is not None and yarn.factor == 1:
        yield Problem(
            "model.attention.rope.yarn.factor",
            "factor is 1, so YaRN changes nothing",
            "remove yarn, or set factor to target context over original context",
        )
