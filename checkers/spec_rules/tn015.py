from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN015",
    title="a held-out loss is asked for in whole sequences",
    why="The held-out loss is taken over sequences of context tokens, at least one: with fewer "
    "eval_tokens than that the run measures more than the spec says.",
    bad="training: {context: 4096, eval_tokens: 1024}",
    good="training: {context: 4096, eval_tokens: 65536}",
    severity=Severity.ADVICE,
    reads=("training.context", "training.eval_tokens"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    if training is not None and training.eval_tokens < training.context:
        yield Problem(
            "training.eval_tokens",
            f"eval_tokens is {training.eval_tokens}, less than one sequence of "
            f"{training.context} tokens",
            f"set it to at least {training.context}",
        )
