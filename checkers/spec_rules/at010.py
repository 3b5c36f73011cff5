from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT010",
    title="YaRN reaches the contexts that are asked for",
    why="YaRN stretches the positions of original_context by factor. Beyond that product the "
    "model meets rotations that it was never made for.",
    bad="model: {attention: {rope: {yarn: {factor: 8, original_context: 4096}}}}\n"
    "inference: {context: 131072}",
    good="model: {attention: {rope: {yarn: {factor: 32, original_context: 4096}}}}\n"
    "inference: {context: 131072}",
    reads=(
        "model.attention.rope.yarn.factor",
        "model.attention.rope.yarn.original_context",
        "training.context",
        "inference.context",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    yarn = spec.model.attention.rope.yarn
    if yarn is None:
        return
    reach = yarn.factor * yarn.original_context
    contexts = {
        "training.context": spec.training.context if spec.training else 0,
        "inference.context": spec.inference.context if spec.inference else 0,
    }
    for field, context in contexts.items():
        if context > reach:
            yield Problem(
                field,
                f"{field} is {context}, but YaRN reaches {yarn.factor:g} × "
                f"{yarn.original_context} = {reach:g} tokens",
                f"set the context to at most {int(reach)}, or model.attention.rope.yarn.factor "
                f"to at least {context / yarn.original_context:g}",
            )
