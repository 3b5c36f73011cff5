from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target


@partial(
    TargetRule,
    code="TN016",
    title="the card computes in the precision that is asked for",
    why="sm75 has no bf16 products: compilers refuse them with pages of assembler, or emulate "
    "them. Precision is never changed in silence, and fp16 is not offered, because training in "
    "it needs loss scaling.",
    bad="training: {precision: bf16}\ntarget: {gpu: t4}",
    good="training: {precision: fp32}\ntarget: {gpu: t4}",
    reads=("training.precision",),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.training is None or target.arch == "cpu":
        return
    if spec.training.precision == "bf16" and not ARCHITECTURES[target.arch].bf16:
        yield Problem(
            "training.precision",
            f"precision is bf16, which {target.name} ({target.arch}) does not have",
            "set precision: fp32, or take a card of sm80 or later",
        )
