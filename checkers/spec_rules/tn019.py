from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import tokenizer_size
from checkers.rule import DataRule, Problem
from gptoss_builder.spec.schema import Spec


@partial(
    DataRule,
    code="TN019",
    title="the tokenizer's ids are below the vocabulary",
    why="An id at or above vocab has no row in the embedding. Special tokens count: they are "
    "often added above the tokenizer's own vocabulary.",
    bad="model: {vocab: 32000}\ndata: {tokenizer: tokenizer.json}   # with ids up to 32002",
    good="model: {vocab: 32003}\ndata: {tokenizer: tokenizer.json}",
    reads=("model.vocab", "data.tokenizer"),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    size = tokenizer_size(spec, directory)
    if size is not None and size > spec.model.vocab:
        yield Problem(
            "model.vocab",
            f"vocab is {spec.model.vocab}, but the tokenizer has ids up to {size - 1}",
            f"set vocab to at least {size}",
        )
