from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checkers.data_files import count_tokens
from checkers.rule import DataRule, Problem
from gptoss_builder.spec.schema import Spec


@partial(
    DataRule,
    code="TN021",
    title="the data holds at least one training sequence and something to hold out",
    why="A sequence is context tokens and the label of the last one. The last holdout part of "
    "the data is kept for the held-out loss, and a label there needs two tokens.",
    bad="training: {context: 4096}\ndata: {path: short.txt}   # 2000 bytes",
    good="training: {context: 256}\ndata: {path: short.txt}",
    reads=("training.context", "data.path", "data.tokenizer", "data.holdout"),
)
def rule(spec: Spec, directory: Path) -> Iterator[Problem]:
    tokens = count_tokens(spec, directory)
    if tokens is None or spec.training is None or spec.data is None:
        return
    held = int(tokens * spec.data.holdout)
    needed = spec.training.context + 1
    if tokens - held < needed:
        yield Problem(
            "data.path",
            f"the data has {tokens} tokens, {tokens - held} of them to train on, and one "
            f"sequence needs {needed}",
            "add data, or lower training.context",
        )
    elif held < 2:
        yield Problem(
            "data.holdout" if "holdout" in spec.data.model_fields_set else "data.path",
            f"holdout {spec.data.holdout:g} of {tokens} tokens holds out {held}, and a label "
            "needs 2",
            "raise data.holdout, or add data",
        )
