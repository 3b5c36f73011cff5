from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.wording import NARROWER, gib
from gptoss_builder.plan.advice import breakdown, what_serves
from gptoss_builder.plan.fit import room
from gptoss_builder.plan.schema import Plan


@partial(
    PlanRule,
    code="VR002",
    title="serving fits the card",
    why="The weights, the key-value cache at the inference context, the prefill, the CUDA "
    "context and the margin must be within the card's usable memory.",
    bad="inference: {context: 131072, batch: 512}\ntarget: {gpu: gtx1650}",
    good="inference: {context: 4096, batch: 1}\ntarget: {gpu: gtx1650}",
)
def rule(plan: Plan) -> Iterator[Problem]:
    inference, estimate = plan.spec.inference, plan.memory.inference
    if inference is None or estimate is None or plan.target.arch == "cpu":
        return
    usable, available = plan.target.memory_bytes, room(plan)
    if estimate.total_bytes <= available:
        return
    cache = f", {gib(plan.kv_cache.total_bytes)} of it cache" if plan.kv_cache else ""
    changes = what_serves(plan, available)
    yield Problem(
        "inference.context",
        f"serving needs {gib(estimate.total_bytes)} at its peak{cache}, and "
        f"{gib(usable - available)} of margin, but {plan.target.name} has {gib(usable)}; at the "
        f"peak: {breakdown(estimate)}",
        f"set {changes}" if changes else NARROWER,
    )
