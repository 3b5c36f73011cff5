from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="MO004",
    title="a trained router is balanced by an auxiliary loss",
    why="Without a balancing loss routers tend to collapse onto few experts, and the others "
    "are never trained.",
    bad="model: {moe: {experts: 8, top_k: 2, aux_loss: 0}}\ntraining: {}",
    good="model: {moe: {experts: 8, top_k: 2, aux_loss: 0.01}}\ntraining: {}",
    severity=Severity.ADVICE,
    reads=("model.moe.experts", "model.moe.top_k", "model.moe.aux_loss", "training"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    moe = spec.model.moe
    if spec.training is not None and moe.aux_loss == 0 and moe.top_k < moe.experts:
        yield Problem(
            "model.moe.aux_loss",
            f"aux_loss is 0, so nothing balances the {moe.experts} experts",
            "set aux_loss to 0.01, the default",
        )
