from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN013",
    title="training and data come together",
    why="gptoss-train reads its tokens from data; a spec with one of the two only is half "
    "finished, unless you hand your own data to train().",
    bad="training: {context: 256}\ndata: null",
    good="training: {context: 256}\ndata: {path: text}",
    severity=Severity.ADVICE,
    reads=("training", "data"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is not None and spec.data is None:
        yield Problem(
            "training",
            "there is training, but no data",
            "add data: {path: <folder or file of text>}, or pass data= to train()",
        )
    if spec.training is None and spec.data is not None:
        yield Problem("data", "there is data, but no training", "add training, or remove data")
