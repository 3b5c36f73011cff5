"""Compare the model that is to be timed with the plain fp32 one of the same weights.

How far off it may be is what rounding costs the plain model.
"""

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
ALLOWED = 1.3
"""Times the plain model's own error in the plan's precision. Rounding sends tokens near a tie to
other experts, so that error grows with depth: with bf16 0.02 in 12 layers of 8 experts, 0.14 in
20 layers of 16, on a CPU as on a GPU."""
ROUNDING = 1e-3
"""What is allowed beside it: another order of sums."""
LOSS_ALLOWED, LOSS_ROUNDING = 3.0, 1e-2
"""The same of the loss, a mean over few tokens whose sign is chance."""


class Result(NamedTuple):
    """What the first tokens of a batch come to."""

    x_TD: Tensor
    """Stream after the final norm, fp32."""
    loss: float
    """Mean cross-entropy, nats a token."""


class Exact(NamedTuple):
    """The plain model: per-expert loop, explicit softmax, nothing compiled."""

    fp32: Result
    error: float
    """Of its stream in the plan's precision, as `compare` measures it."""
    loss_error: float


def plain_result(plan: Plan, batch: StepBatch) -> Exact:
    """Results of the plain model with the plan's weights."""
    device = batch.tokens_ABT.device
    length = min(CHECK_TOKENS, batch.tokens_ABT.shape[2])
    model = build(plain(plan, length), device=device)
    tokens_BT = batch.tokens_ABT[0, :1, :length]
    low = plan.execution.precision == "bf16"
    with torch.no_grad():
        fp32 = _result(model, model.hidden(tokens_BT)[0][0], batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            x_BTD, _ = model.hidden(tokens_BT)
        rounded = _result(model, x_BTD[0], batch)
    return Exact(fp32, _error(rounded, fp32), abs(rounded.loss - fp32.loss))


def compare(model: Trainable, batch: StepBatch, exact: Exact) -> dict[str, float]:
    """Hold `model` to `exact`, on the whole batch, with the code that a step runs.

    Attention is causal, so the first tokens of a sequence do not see the rest of it.

    Returns:
        The relative error of the stream, median over tokens, the plain model's own, and the
        difference of the losses.

    Raises:
        ValueError: one is above its limit: nothing of this shape is worth timing.
    """
    x_BTD, _ = model.hidden(batch.tokens_ABT[0])  # with gradients on, as in a step
    with torch.no_grad():
        ours = _result(model, x_BTD[0, : exact.fp32.x_TD.shape[0]], batch)
    error, difference = _error(ours, exact.fp32), ours.loss - exact.fp32.loss
    limit = ALLOWED * exact.error + ROUNDING
    loss_limit = LOSS_ALLOWED * exact.loss_error + LOSS_ROUNDING
    if not (error <= limit and abs(difference) <= loss_limit):
        raise ValueError(
            f"hidden states are off by {error:.3g} (limit {limit:.3g}) and the loss by "
            f"{difference:.3g} (limit {loss_limit:.3g}) from plain fp32: not timed"
        )
    return {
        "hidden_error": error,
        "plain_hidden_error": exact.error,
        "loss_difference": difference,
    }


def _error(found: Result, exact: Result) -> float:
    off_T = (found.x_TD - exact.x_TD).norm(dim=1) / exact.x_TD.norm(dim=1)
    return float(off_T.median())


def _result(model: Trainable, x_TD: Tensor, batch: StepBatch) -> Result:
    labels_T = batch.labels_ABT[0, 0, : x_TD.shape[0]]
    _, nll = linear_cross_entropy(x_TD, model.head_weight, labels_T, chunk=len(x_TD))
    return Result(x_TD.detach().float(), nll.item() / len(x_TD))
