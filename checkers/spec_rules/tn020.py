from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import tokenizer_size
from checkers.rule import DataRule, Problem
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec

ROUNDING = 1024
"""Ids that a vocabulary may have to spare, so that its size is a round number."""


@partial(
    DataRule,
    code="TN020",
    title="the vocabulary is about as large as the tokenizer",
    why="Rows of the embedding that no token reads cost memory, and time in the loss. A few, up "
    "to a round number, make the products faster; many mean another tokenizer was meant.",
    bad="model: {vocab: 128000}\ndata: {tokenizer: tokenizer.json}   # with 32000 ids",
    good="model: {vocab: 32000}\ndata: {tokenizer: tokenizer.json}",
    severity=Severity.ADVICE,
    reads=("model.vocab", "data.tokenizer"),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    size, vocab = tokenizer_size(spec, directory), spec.model.vocab
    if size is not None and vocab >= size + ROUNDING:
        yield Problem(
            "model.vocab",
            f"vocab is {vocab}, and the tokenizer has {size} ids",
            f"set vocab to {-(-size // 128) * 128}, the next multiple of 128",
        )
