from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import PlanRule, Problem
from checkers.what_if import training_bytes
from gptoss_builder.findings import Severity
from gptoss_builder.plan.schema import Plan


@partial(
    PlanRule,
    code="CK003",
    title="gradient checkpointing lowers the peak",
    why="Where the peak is not in the layers (it can be in the loss or the optimizer), "
    "recomputing them costs time and saves nothing.",
    bad="model: {layers: 2, vocab: 200000}\ntraining: {context: 16, checkpoint_every: 1}",
    good="model: {layers: 2, vocab: 200000}\ntraining: {context: 16, checkpoint_every: 0}",
    severity=Severity.ADVICE,
)
def rule(plan: Plan) -> Iterator[Problem]:
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None or not training.checkpoint_every:
        return
    if training_bytes(plan, checkpoint_every=0) <= estimate.total_bytes:
        yield Problem(
            "training.checkpoint_every",
            f"a period of {training.checkpoint_every} does not lower the peak ({estimate.peak})",
            "set checkpoint_every: 0",
        )
