from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import count_tokens
from checkers.rule import DataRule, Problem
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec

EPOCHS = 4
"""Repetitions that cost little (Muennighoff et al. 2023, arXiv:2305.16264)."""


@partial(
    DataRule,
    code="TN022",
    title="the run repeats its data at most 4 times",
    why="Up to about four epochs, repeated tokens are worth nearly as much as new ones; beyond "
    "that the model memorises (Muennighoff et al. 2023, arXiv:2305.16264).",
    bad="training: {context: 512, micro_batch: 16, steps: 100000}\n"
    "data: {path: corpus.txt}   # 10 MB",
    good="training: {context: 512, micro_batch: 16, steps: 4000}\ndata: {path: corpus.txt}",
    severity=Severity.ADVICE,
    reads=(
        "training.context",
        "training.micro_batch",
        "training.accumulate",
        "training.steps",
        "data.path",
        "data.tokenizer",
    ),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    training, tokens = spec.training, count_tokens(spec, directory)
    if training is None or spec.data is None or not tokens:
        return
    step = training.context * training.micro_batch * training.accumulate
    trained = tokens * (1 - spec.data.holdout)
    if trained <= training.context:
        return  # TN021 says so.
    epochs = training.steps * step / trained
    if epochs > EPOCHS:
        most = max(int(EPOCHS * trained / step), 1)
        yield Problem(
            "training.steps",
            f"{training.steps} steps of {step} tokens read the {int(trained)} training tokens "
            f"{epochs:.1f} times",
            f"set steps to at most {most}, or add data",
        )
