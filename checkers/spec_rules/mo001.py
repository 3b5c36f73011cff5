from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="MO001",
    title="top_k is at most the number of experts",
    why="A token cannot visit more experts than there are.",
    bad="model: {moe: {experts: 4, top_k: 6}}",
    good="model: {moe: {experts: 4, top_k: 2}}",
    reads=("model.moe.experts", "model.moe.top_k"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    moe = spec.model.moe
    if moe.top_k > moe.experts:
        yield Problem(
            "model.moe.top_k",
            f"top_k is {moe.top_k}, but there are {moe.experts} experts",
            f"lower it to at most {moe.experts}, or raise experts to {moe.top_k}",
        )
