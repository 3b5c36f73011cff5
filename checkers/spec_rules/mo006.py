from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target


@partial(
    TargetRule,
    code="MO006",
    title="grouped dispatch has a GPU",
    why="grouped_mm and triton_grouped run on CUDA cards only, and nothing takes their place "
    "in silence.",
    bad="model: {moe: {dispatch: triton_grouped}}\ntarget: {gpu: cpu}",
    good="model: {moe: {dispatch: stacked}}\ntarget: {gpu: cpu}",
    reads=("model.moe.dispatch",),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    dispatch = spec.model.moe.dispatch
    if target.arch == "cpu" and dispatch != "stacked":
        yield Problem(
            "model.moe.dispatch",
            f"dispatch is {dispatch}, and the target is cpu",
            "set dispatch: stacked, or target a GPU",
        )
