from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec

LARGEST = 100.0


@partial(
    SpecRule,
    code="TN006",
    title="the gradient norm is clipped where it matters",
    why="One bad batch can undo hours of training. A limit of 0 is off, and one far above the "
    "usual norms, which are around 1, never acts.",
    bad="training: {optimizer: {grad_clip: 0}}",
    good="training: {optimizer: {grad_clip: 1.0}}",
    severity=Severity.ADVICE,
    reads=("training.optimizer.grad_clip",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.training is None:
        return
    clip = spec.training.optimizer.grad_clip
    if clip == 0 or clip > LARGEST:
        effect = "gradients are not clipped" if clip == 0 else "a limit that never acts"
        yield Problem(
            "training.optimizer.grad_clip", f"grad_clip is {clip:g}: {effect}", "set it to 1.0"
        )
