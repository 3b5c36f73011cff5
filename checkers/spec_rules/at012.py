from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT012",
    title="serving stays within the trained context, or YaRN extends it",
    why="Plain RoPE does not extrapolate: beyond the longest trained position the quality of "
    "full layers falls off.",
    bad="training: {context: 4096}\ninference: {context: 131072}",
    good="training: {context: 4096}\ninference: {context: 4096}",
    severity=Severity.ADVICE,
    reads=(
        "model.attention.pattern",
        "model.attention.rope.yarn",
        "training.context",
        "inference.context",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training, inference = spec.training, spec.inference
    if training is None or inference is None or spec.model.attention.rope.yarn is not None:
        return
    if "full" in spec.model.attention.pattern and inference.context > training.context:
        yield Problem(
            "inference.context",
            f"inference.context is {inference.context}, training.context {training.context}, "
            "and there is no YaRN",
            f"add rope: {{yarn: {{factor: {inference.context / training.context:g}, "
            f"original_context: {training.context}}}}} under attention, or shorten the context",
        )
