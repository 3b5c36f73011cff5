from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.facts import precision
from checkers.rule import Problem, TargetRule
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target

MULTIPLE = 8
WIDEST = 256


@partial(
    TargetRule,
    code="AT013",
    title="flash attention can run what it is asked for",
    why="FlashAttention-2 takes bf16 on sm80 and later and head widths in multiples of 8 up to "
    "256. math is the explicit softmax, and runs anywhere.",
    bad="model: {attention: {head_dim: 96, backend: flash}}\ntarget: {gpu: cpu}",
    good="model: {attention: {head_dim: 96, backend: auto}}\ntarget: {gpu: cpu}",
    reads=("model.attention.backend", "model.attention.head_dim", "training.precision"),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    attention = spec.model.attention
    if attention.backend != "flash":
        return
    dtype = precision(spec, target)
    if target.arch == "cpu" or not ARCHITECTURES[target.arch].bf16:
        reason = f"the target is {target.name} ({target.arch}), and flash needs sm80 or later"
    elif dtype != "bf16":
        reason = f"precision is {dtype}, and flash needs bf16"
    elif attention.head_dim % MULTIPLE or attention.head_dim > WIDEST:
        reason = (
            f"head_dim is {attention.head_dim}, and flash needs a multiple of {MULTIPLE} "
            f"up to {WIDEST}"
        )
    else:
        return
    yield Problem("model.attention.backend", f"backend is flash, but {reason}", "set auto or math")
