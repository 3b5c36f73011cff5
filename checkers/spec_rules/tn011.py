from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN011",
    title="the byte tokenizer fills its vocabulary",
    why="Rows of the embedding beyond 255 are never read by bytes: they cost memory and time "
    "in the loss, and often mean that another tokenizer was meant.",
    bad="model: {vocab: 128000}\ndata: {path: text, tokenizer: bytes}",
    good="model: {vocab: 256}\ndata: {path: text, tokenizer: bytes}",
    severity=Severity.ADVICE,
    reads=("model.vocab", "data.tokenizer"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    vocab = spec.model.vocab
    if spec.data is not None and spec.data.tokenizer == "bytes" and vocab > 256:
        yield Problem(
            "model.vocab",
            f"vocab is {vocab}, and the byte tokenizer uses 256 of it",
            "set vocab to 256, or name a tokenizer.json in data.tokenizer",
        )
