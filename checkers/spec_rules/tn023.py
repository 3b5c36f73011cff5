from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import count_tokens
from checkers.rule import DataRule, Problem
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    DataRule,
    code="TN023",
    title="one optimizer step does not read the same sequence twice",
    why="A step of micro_batch · accumulate sequences that is larger than an epoch averages "
    "gradients of the same tokens: it costs more and learns no more.",
    bad="training: {context: 256, micro_batch: 8, accumulate: 64}\n"
    "data: {path: small.txt}   # 50 kB, 180 sequences",
    good="training: {context: 256, micro_batch: 8, accumulate: 4}\ndata: {path: small.txt}",
    severity=Severity.ADVICE,
    reads=(
        "training.context",
        "training.micro_batch",
        "training.accumulate",
        "data.path",
        "data.tokenizer",
        "data.holdout",
    ),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    training, tokens = spec.training, count_tokens(spec, directory)
    if training is None or spec.data is None or not tokens:
        return
    sequences = (tokens - int(tokens * spec.data.holdout) - 1) // training.context
    step = training.micro_batch * training.accumulate
    if 0 < sequences < step:
        yield Problem(
            "training.accumulate" if training.accumulate > 1 else "training.micro_batch",
            f"a step reads {training.micro_batch} × {training.accumulate} = {step} sequences, "
            f"and the data has {sequences}",
            f"lower micro_batch · accumulate to at most {sequences}, or add data",
        )
