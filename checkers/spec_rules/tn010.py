from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN010",
    title="the byte tokenizer has a vocabulary of at least 256",
    why="Its token ids are 0 … 255; an id at or above vocab has no row in the embedding.",
    bad="model: {vocab: 128}\ndata: {path: text, tokenizer: bytes}",
    good="model: {vocab: 256}\ndata: {path: text, tokenizer: bytes}",
    reads=("model.vocab", "data.tokenizer"),
    before_plan=False,
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.data is not None and spec.data.tokenizer == "bytes" and spec.model.vocab < 256:
        yield Problem(
            "model.vocab",
            f"vocab is {spec.model.vocab}, but the byte tokenizer has ids up to 255",
            "set vocab to 256",
        )
