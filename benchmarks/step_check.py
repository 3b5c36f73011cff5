"""Compare the model that is to be timed with the plain fp32 one of the same weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.step_rows import plain
from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.loss import linear_cross_entropy
from gptoss_builder.train.step import Trainable

CHECK_TOKENS = 1024
"""Tokens of the first sequence that are compared; explicit scores of a long one do not fit."""
HIDDEN_LIMIT = 0.05
"""Of the median over tokens: near ties, rounding sends single tokens to other experts. On a CPU
bf16 came to 0.022 on the lite shape and to 0.015 on the fine one."""
LOSS_LIMIT = 1e-2


class Result(NamedTuple):
    """What the first tokens of a batch come to."""

    x_TD: Tensor
    """Stream after the final norm, fp32."""
    loss: float
    """Mean cross-entropy, nats a token."""


def plain_result(plan: Plan, batch: StepBatch) -> Result:
    """Result of the plain fp32 model: per-expert loop, explicit softmax, nothing compiled."""
    length = min(CHECK_TOKENS, batch.tokens_ABT.shape[2])
    model = build(plain(plan, length), device=batch.tokens_ABT.device)
    with torch.no_grad():
        x_BTD, _ = model.hidden(batch.tokens_ABT[0, :1, :length])
        return _result(model, x_BTD[0], batch)


def compare(model: Trainable, batch: StepBatch, exact: Result) -> dict[str, float]:
    """Hold `model` to `exact`, on the whole batch, with the code that a step runs.

    Attention is causal, so the first tokens of a sequence do not see the rest of it.

    Returns:
        The relative error of the stream, median over tokens, and the difference of the losses.

    Raises:
        ValueError: one is above its limit: nothing of this shape is worth timing.
    """
    x_BTD, _ = model.hidden(batch.tokens_ABT[0])  # with gradients on, as in a step
    with torch.no_grad():
        ours = _result(model, x_BTD[0, : exact.x_TD.shape[0]], batch)
        off_T = (ours.x_TD - exact.x_TD).norm(dim=1) / exact.x_TD.norm(dim=1)
        error, difference = float(off_T.median()), ours.loss - exact.loss
    if not (error <= HIDDEN_LIMIT and abs(difference) <= LOSS_LIMIT):
        raise ValueError(
            f"hidden states are off by {error:.3g} (limit {HIDDEN_LIMIT:g}) and the loss by "
            f"{difference:.3g} (limit {LOSS_LIMIT:g}) from plain fp32: not timed"
        )
    return {"hidden_error": error, "loss_difference": difference}


def _result(model: Trainable, x_TD: Tensor, batch: StepBatch) -> Result:
    labels_T = batch.labels_ABT[0, 0, : x_TD.shape[0]]
    _, nll = linear_cross_entropy(x_TD, model.head_weight, labels_T, chunk=len(x_TD))
    return Result(x_TD.float(), nll.item() / len(x_TD))
