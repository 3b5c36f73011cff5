from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.what_if import halved, larger_card, serving_bytes
from checkers.wording import GIB, either, gib
from gptoss_builder.plan.advice import breakdown
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
    margin = plan.spec.target.margin_gib * GIB
    usable = plan.target.memory_bytes
    if estimate.total_bytes + margin <= usable:
        return
    cache = f", {gib(plan.kv_cache.total_bytes)} of it cache" if plan.kv_cache else ""
    yield Problem(
        "inference.context",
        f"serving needs {gib(estimate.total_bytes)} at its peak{cache}, and {gib(margin)} of "
        f"margin, but {plan.target.name} has {gib(usable)}; at the peak: {breakdown(estimate)}",
        _way_out(plan, usable - int(margin)),
    )


def _way_out(plan: Plan, room: int) -> str:
    """The largest batch that fits, or else the context, or else the card."""
    inference = plan.spec.inference
    if inference is None:
        return ""
    batches = range(inference.batch, 0, -1)

    def fits(**changes: int) -> bool:
        return serving_bytes(plan, **changes) <= room

    first = bisect_left(batches, True, key=lambda batch: fits(batch=batch))
    if first < len(batches):
        return f"set inference.batch to {batches[first]} (now {inference.batch}); that fits"
    context = halved(inference.context, lambda context: fits(batch=1, context=context))
    alone = " with batch 1" if inference.batch > 1 else ""
    ways = [
        "narrow the model"
        if context is None
        else f"shorten inference.context to {context} (now {inference.context}){alone}"
    ]
    card = larger_card(plan, lambda card: serving_bytes(plan, card))
    if card is not None:
        ways.append(f"take a larger card, such as {card}")
    return either(ways)
