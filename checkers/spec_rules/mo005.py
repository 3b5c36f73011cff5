from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="MO005",
    title="routed experts outnumber the shared ones",
    why="A shared expert runs for every token. Where as much is shared as is routed, the model "
    "is dense with a small sparse part.",
    bad="model: {moe: {experts: 8, top_k: 2, shared_experts: 8}}",
    good="model: {moe: {experts: 8, top_k: 2, shared_experts: 1}}",
    severity=Severity.ADVICE,
    reads=("model.moe.experts", "model.moe.shared_experts"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    moe = spec.model.moe
    if moe.experts > 1 and moe.shared_experts >= moe.experts:
        yield Problem(
            "model.moe.shared_experts",
            f"shared_experts is {moe.shared_experts}, and {moe.experts} experts are routed",
            f"lower it below {moe.experts}; 1 is usual",
        )
