from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="CK001",
    title="the checkpoint period is below the number of layers",
    why="Checkpointing recomputes layers 0, n, 2n, …; a period of the layers or more "
    "recomputes layer 0 alone, which saves almost nothing.",
    bad="model: {layers: 4}\ntraining: {checkpoint_every: 6}",
    good="model: {layers: 4}\ntraining: {checkpoint_every: 2}",
    severity=Severity.ADVICE,
    reads=("model.layers", "training.checkpoint_every"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training, layers = spec.training, spec.model.layers
    if training is not None and layers > 1 and training.checkpoint_every >= layers:
        yield Problem(
            "training.checkpoint_every",
            f"a period of {training.checkpoint_every} over {layers} layers checkpoints layer 0 "
            "alone",
            f"set it to 1 … {max(layers // 2, 1)}, or to 0 for no checkpointing",
        )
