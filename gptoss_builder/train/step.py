"""One optimizer step, launched without waiting for the device.

Dimensions: A micro-batches of a step, B sequences, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from gptoss_builder.errors import InputError
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train import optim
from gptoss_builder.train.compiling import compile_parts
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.loss import linear_cross_entropy


class Trainable(Protocol):
    """What the trainer asks of a module besides being an `nn.Module`."""

    @property
    def head_weight(self) -> Tensor:
        """Output projection `[V, D]`."""

    def hidden(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Final hidden states `[B, T, D]` and an auxiliary loss, an fp32 scalar."""


@dataclass(frozen=True)
class StepNumbers:
    """What a step came to, on the host."""

    loss: float
    """Mean cross-entropy over the step's valid labels, in nats."""
    aux_loss: float
    """Mean over micro-batches, before its coefficient."""
    grad_norm: float
    """Before clipping."""
    finite: bool
    """Loss and norm are; a step that is not was skipped, unless the guard is off."""
    ended: float
    """When, on `time.monotonic`'s clock."""


class PendingNumbers:
    """Numbers on their way to the host: `wait` blocks until the step has ended there."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        """Loss, auxiliary loss, gradient norm and finiteness, fp32, on the device."""
        self._event: torch.cuda.Event | None = None
        self._ended = time.monotonic()  # of a step on the CPU, which has ended when it returns
        self._host = torch.empty(numbers.shape, pin_memory=numbers.is_cuda)
        self._host.copy_(numbers, non_blocking=True)
        if numbers.is_cuda:
            self._event = torch.cuda.current_stream().record_event()

    def wait(self) -> StepNumbers:
        """The numbers, when the device has come that far."""
        if self._event is not None:
            self._event.synchronize()
            self._ended = time.monotonic()
        loss, aux_loss, norm, finite = self._host.tolist()
        return StepNumbers(loss, aux_loss, norm, bool(finite), self._ended)


class Stepper:
    """Model, optimizer and guard of a run, and the step over them."""

    def __init__(self, plan: Plan, model: nn.Module, guard: NanGuard) -> None:
        """Make what the plan says from `model`, which holds the fp32 masters.

        Raises:
            InputError: the spec has no training, or the module has not what `Trainable` asks.
                What its `hidden` returns is looked at in every step.
        """
        if plan.spec.training is None:
            raise InputError("the spec has no training section, so there is nothing to train")
        for name in ("hidden", "head_weight"):
            if not hasattr(model, name):
                raise InputError(f"{type(model).__name__} has no {name}; see train.step.Trainable")
        self._training = plan.spec.training
        self._aux_coefficient = plan.spec.model.moe.aux_loss
        self._vocab = plan.spec.model.vocab
        self.model, self._guard = model, guard
        self._compiled = plan.execution.compile
        self._mixed = optim.MixedPrecision(model, plan.execution.precision, copy=self._compiled)
        self.compute = self._mixed.module
        self.trainable = cast(Trainable, self.compute)
        if self._compiled:
            compile_parts(self.compute, plan)
        self.optimizer = optim.adamw(model, self._training.optimizer)

    def refresh(self) -> None:
        """Take over masters that were changed from outside, by a checkpoint."""
        self._mixed.refresh()

    def run(self, batch: StepBatch, index: int) -> PendingNumbers:
        """Optimizer step `index`, from 0.

        Gradients are those of (Σ cross-entropy over all valid labels of the step) / (their
        count) + aux_loss · mean over micro-batches of the auxiliary loss. A step without a
        single valid label changes nothing.
        """
        device = batch.tokens_ABT.device
        nll = torch.zeros((), dtype=torch.float32, device=device)
        aux = torch.zeros_like(nll)
        if batch.valid == 0:
            return PendingNumbers(torch.stack([nll, aux, nll, torch.ones_like(nll)]))
        scale = torch.full_like(nll, 1 / batch.valid)
        for tokens_BT, labels_BT in zip(batch.tokens_ABT, batch.labels_ABT, strict=True):
            part, part_aux = self._backward(tokens_BT, labels_BT, scale)
            nll += part
            aux += part_aux
        loss, aux = nll * scale, aux / len(batch.tokens_ABT)
        norm = optim.gradient_norm(self.optimizer)
        optim.step(
            self.optimizer,
            lr=optim.learning_rate(index, self._training.steps, self._training.optimizer),
            norm=norm,
            grad_clip=self._training.optimizer.grad_clip,
            skip=self._guard.skip(loss, norm),
        )
        self._mixed.refresh()
        finite = (torch.isfinite(loss) & torch.isfinite(norm)).float()
        return PendingNumbers(torch.stack([loss, aux, norm, finite]))

    def _backward(
        self, tokens_BT: Tensor, labels_BT: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs = self.trainable.hidden(tokens_BT)
        _require_outputs(self.trainable, outputs, tokens_BT, self._vocab)
        x_BTD, aux = outputs
        objective, nll = linear_cross_entropy(
            x_BTD.flatten(0, 1),
            self.trainable.head_weight,
            labels_BT.flatten(),
            chunk=self._training.loss_chunk,
            scale=scale,
            z_loss=self._training.z_loss,
            compiled=self._compiled,
        )
        weight = self._aux_coefficient / self._training.accumulate
        torch.autograd.backward(objective + weight * aux)
        return nll, aux.detach()


def _require_outputs(trainable: Trainable, outputs: object, tokens_BT: Tensor, vocab: int) -> None:
    """Hold a module to `Trainable` by shapes, which the host knows without waiting.

    Raises:
        InputError: it returned something else.
    """
    name, head_VD = type(trainable).__name__, trainable.head_weight
    if (
        not isinstance(outputs, tuple)
        or len(outputs) != 2
        or not all(isinstance(output, Tensor) for output in outputs)
    ):
        raise InputError(
            f"{name}.hidden must return a tuple of two tensors, hidden states [B, T, D] and an "
            f"auxiliary loss, not {type(outputs).__name__}"
        )
    x_BTD, aux = outputs
    if x_BTD.shape[:-1] != tokens_BT.shape or aux.ndim:
        raise InputError(
            f"{name}.hidden of tokens {list(tokens_BT.shape)} returned {list(x_BTD.shape)} and an "
            f"auxiliary loss of shape {list(aux.shape)}; it must be [B, T, D] and a scalar"
        )
    if head_VD.ndim != 2 or head_VD.shape[0] < vocab or head_VD.shape[1] != x_BTD.shape[-1]:
        raise InputError(
            f"{name}.head_weight is {list(head_VD.shape)}; it must be [V, D] with V at least "
            f"model.vocab, {vocab}, and D that of hidden, {x_BTD.shape[-1]}"
        )
