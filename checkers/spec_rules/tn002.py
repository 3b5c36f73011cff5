from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec

LARGEST = 0.1


@partial(
    SpecRule,
    code="TN002",
    title="the learning rate is at most 0.1",
    why="A step of AdamW moves each weight by about the learning rate, and weights start at "
    "init_std, a few hundredths: a rate above that overwrites the model at every step.",
    bad="training: {optimizer: {lr: 4}}",
    good="training: {optimizer: {lr: 4e-4}}",
    reads=("training.optimizer.lr",),
    before_plan=False,
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is not None and spec.training.optimizer.lr > LARGEST:
        yield Problem(
            "training.optimizer.lr",
            f"lr is {spec.training.optimizer.lr:g}: AdamW would move every weight by about that "
            "at each step",
            "set it between 1e-5 and 1e-2, such as 4e-4",
        )
