"""The held-out loss, beside the entropy that a model without context could reach at best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gptoss_builder.train.data import Loader
from gptoss_builder.train.loss import IGNORE, cross_entropy_sum
from gptoss_builder.train.step import Trainable

CHUNKS = 5
"""Chunks of a held-out loss for one of training's. `cross_entropy_sum` holds up to ten bytes a
logit, two of training's are enough, and the guard looks at training's alone."""


@dataclass(frozen=True)
class HeldOut:
    """Losses in nats a token."""

    loss: float
    """Mean cross-entropy of the model."""
    unigram_entropy: float
    """Entropy of the distribution of the very labels that the loss is over: no model that
    knows frequencies only, not even theirs, is below it."""
    tokens: int
    """Labels that both are over."""

    def __str__(self) -> str:
        bits = 1 / math.log(2)
        return (
            f"held-out loss {self.loss:.4f} nats ({self.loss * bits:.3f} bits) a token over "
            f"{self.tokens:,} tokens; unigram entropy {self.unigram_entropy:.4f} nats "
            f"({self.unigram_entropy * bits:.3f} bits)"
        )


def held_out_loss(
    compute: nn.Module,
    trainable: Trainable,
    loader: Loader,
    *,
    tokens: int,
    vocab: int,
    chunk: int,
    stop: Callable[[], bool],
) -> HeldOut | None:
    """Evaluate on at most `tokens` held-out tokens, in eval mode and without gradients.

    Args:
        compute: the module, whose mode is restored.
        trainable: the same object, as what it can do.
        loader: where the held-out batches come from.
        tokens: how many at most; at least one sequence is taken.
        vocab: ids are 0 … vocab − 1.
        chunk: tokens whose logits training holds at one time; here it is a part of them.
        stop: asked before and between batches.

    Returns:
        None if `stop` said so before the end, or if nothing held out has a label.
    """
    if stop():
        return None
    was_training = compute.training
    compute.eval()
    try:
        with torch.no_grad():
            return _sum(trainable, loader, tokens, vocab, chunk, stop)
    finally:
        compute.train(was_training)


def _sum(
    trainable: Trainable,
    loader: Loader,
    tokens: int,
    vocab: int,
    chunk: int,
    stop: Callable[[], bool],
) -> HeldOut | None:
    total = torch.zeros((), dtype=torch.float64)
    counts = torch.zeros(vocab, dtype=torch.float64)
    for batch in loader.held_out(tokens):
        if stop():
            return None
        labels_T = batch.labels_ABT.flatten()
        x_BTD, _ = trainable.hidden(batch.tokens_ABT[0])
        part, _ = cross_entropy_sum(
            x_BTD.flatten(0, 1),
            trainable.head_weight,
            labels_T,
            chunk=held_out_chunk(chunk, len(labels_T)),
        )
        del x_BTD  # it would live beside the next batch
        total = part.double() + total.to(part.device)
        on_host = labels_T.cpu()
        counts += torch.bincount(on_host[on_host != IGNORE], minlength=vocab)
    seen = counts.sum()
    if not seen:
        return None
    share = counts[counts > 0] / seen
    return HeldOut(
        loss=float(total / seen.to(total.device)),
        unigram_entropy=float(-(share * share.log()).sum()),
        tokens=int(seen),
    )


def held_out_chunk(chunk: int, tokens: int) -> int:
    """Tokens whose logits exist at one time in a batch of `tokens`.

    >>> held_out_chunk(8192, 32768), held_out_chunk(8192, 1000), held_out_chunk(1, 1000)
    (1638, 200, 1)
    """
    return max(min(chunk, tokens) // CHUNKS, 1)
