from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="MO002",
    title="top_k is below the number of experts",
    why="When every token visits every expert nothing is sparse: the router weighs a dense "
    "layer, at the price of a sparse one.",
    bad="model: {moe: {experts: 4, top_k: 4}}",
    good="model: {moe: {experts: 4, top_k: 2}}",
    severity=Severity.ADVICE,
    reads=("model.moe.experts", "model.moe.top_k"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    moe = spec.model.moe
    if moe.experts > 1 and moe.top_k == moe.experts:
        yield Problem(
            "model.moe.top_k",
            f"top_k is {moe.top_k}, all of the experts: every token visits every expert",
            "lower top_k, or add experts",
        )
