from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="TN009",
    title="a loss chunk is smaller than the micro-batch",
    why="The loss holds logits for loss_chunk tokens at a time. A chunk of the whole "
    "micro-batch or more holds them all, [tokens, vocabulary], which is what chunks avoid.",
    bad="model: {vocab: 128000}\ntraining: {micro_batch: 8, context: 4096, loss_chunk: 65536}",
    good="model: {vocab: 128000}\ntraining: {micro_batch: 8, context: 4096, loss_chunk: 8192}",
    severity=Severity.ADVICE,
    reads=(
        "model.vocab",
        "training.context",
        "training.micro_batch",
        "training.loss_chunk",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    training = spec.training
    if training is None:
        return
    tokens = training.micro_batch * training.context
    logits_bytes = 4 * min(tokens, training.loss_chunk) * spec.model.vocab
    if training.loss_chunk >= tokens and logits_bytes > 2**30:
        yield Problem(
            "training.loss_chunk",
            f"loss_chunk is {training.loss_chunk}, all {tokens} tokens of a micro-batch: "
            f"their fp32 logits are {logits_bytes / 2**30:.1f} GiB",
            f"set it to {max(2**29 // (4 * spec.model.vocab), 1)} or so, which is half a GiB",
        )
