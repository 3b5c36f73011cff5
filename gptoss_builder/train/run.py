"""The state of a run and how it goes on: steps, saves, evaluations, the end.

Step k is launched before the numbers of step k − 1 are read, so the host waits for the device
once a step, one step behind. What must be current (a checkpoint, an evaluation) reads first.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import TrainingSpec
from gptoss_builder.train import checkpoint, rng
from gptoss_builder.train.checkpoint import Checkpoint
from gptoss_builder.train.data import Loader, TrainingData
from gptoss_builder.train.display import Display
from gptoss_builder.train.evaluate import HeldOut, held_out_loss
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.metrics import Metrics
from gptoss_builder.train.optim import learning_rate
from gptoss_builder.train.resume import require_same_data
from gptoss_builder.train.step import PendingNumbers, Stepper
from gptoss_builder.train.stop import StopRequest


class Run:
    """A model in training, at some step of its schedule."""

    def __init__(
        self,
        plan: Plan,
        training: TrainingSpec,
        model: nn.Module,
        data: TrainingData,
        *,
        directory: Path,
        device: torch.device,
        stop: StopRequest,
    ) -> None:
        self._plan, self._training, self._data = plan, training, data
        self._directory, self._device, self._stop = directory / checkpoint.CHECKPOINTS, device, stop
        self._guard = NanGuard(training.nan_guard)
        self._stepper = Stepper(plan, model, self._guard)
        self._loader = Loader(
            data,
            accumulate=training.accumulate,
            micro_batch=training.micro_batch,
            context=training.context,
            vocab=plan.spec.model.vocab,
            device=device,
        )
        self.compute = self._stepper.compute
        """The module that computes."""
        self.step = 0
        """Optimizer steps done."""
        self.sequences = 0
        """Training sequences consumed."""
        self.computed = False
        """Whether a step of this process had a label; one that has none computes nothing."""
        self.saved: Path | None = None
        """Checkpoint of `step`, if there is one."""
        self._clock = time.monotonic()

    def restore(self, start: Checkpoint) -> None:
        """Go to the state of a checkpoint.

        Raises:
            ArtifactError: it is of another model or other data.
        """
        require_same_data(start.state["data"], self._data.identity)
        checkpoint.restore_model(start, self._stepper.model)
        checkpoint.restore_optimizer(start, self._stepper.model, self._stepper.optimizer)
        self._stepper.refresh()
        rng.restore(start.rng, start.state["python_rng"], self._device)
        self._guard.consecutive = start.state["consecutive_skips"]
        self.step, self.sequences = start.step, start.state["sequences"]
        self.saved = start.path

    def advance(self, last: int, metrics: Metrics, display: Display) -> None:
        """Train to step `last`, or to the step at which a signal came.

        Raises:
            DivergedError: too many steps in a row were not finite.
            DataError: data that cannot be used; what was trained before it is not saved.
            RunError: a checkpoint could not be written.
        """
        training = self._training
        per_step = training.micro_batch * training.accumulate
        pending: PendingNumbers | None = None
        memory: dict[str, int] = {}
        self._clock = time.monotonic()
        for batch in self._loader.steps(self.sequences, last - self.step):
            if self._stop:
                break
            launched = self._stepper.run(batch, self.step)
            self.computed |= batch.valid > 0
            if pending is not None:
                self._observe(pending, self.step, memory, metrics, display)
            memory = _peak_memory(self._device)
            self.step += 1
            self.sequences += per_step
            self.saved = None
            pending = launched
            save = _due(self.step, training.save_every)
            evaluate = _due(self.step, training.eval_every) and self.step < last
            if save or evaluate:
                self._observe(pending, self.step, memory, metrics, display)
                pending = None
            if save:
                self.save()
            if evaluate:
                self.evaluate(metrics, display)
            if save or evaluate:
                self._clock = time.monotonic()
        if pending is not None:
            self._observe(pending, self.step, memory, metrics, display)

    def save(self) -> Path:
        """Write a checkpoint of the current step, unless there is one.

        Raises:
            RunError: it could not be written.
        """
        if self.saved is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            state = {
                "step": self.step,
                "sequences": self.sequences,
                "consecutive_skips": self._guard.consecutive,
                "data": self._data.identity,
                "spec": self._plan.spec.model_dump(mode="json"),
                "python_rng": rng.python_state(),
            }
            self.saved = checkpoint.save(
                self._directory,
                model=self._stepper.model,
                optimizer=self._stepper.optimizer,
                rng=rng.tensors(self._device),
                state=state,
                keep=self._training.keep,
            )
        return self.saved

    def evaluate(self, metrics: Metrics, display: Display) -> HeldOut | None:
        """The held-out loss of the weights now; None if a signal came or nothing is held out."""
        held_out = held_out_loss(
            self.compute,
            self._stepper.trainable,
            self._loader,
            tokens=self._training.eval_tokens,
            vocab=self._plan.spec.model.vocab,
            chunk=self._training.loss_chunk,
            stop=lambda: bool(self._stop),
        )
        if held_out is not None:
            display.note(f"step {self.step}: {held_out}")
            metrics.write(
                {
                    "step": self.step,
                    "held_out_loss": held_out.loss,
                    "unigram_entropy": held_out.unigram_entropy,
                }
            )
        return held_out

    def _observe(
        self,
        pending: PendingNumbers,
        step: int,
        memory: dict[str, int],
        metrics: Metrics,
        display: Display,
    ) -> None:
        training = self._training
        numbers = pending.wait()
        tokens = training.context * training.micro_batch * training.accumulate
        rate = tokens / max(numbers.ended - self._clock, 1e-9)
        self._clock = numbers.ended
        metrics.write(
            {
                "step": step,
                "loss": numbers.loss,
                "aux_loss": numbers.aux_loss,
                "grad_norm": numbers.grad_norm,
                "lr": learning_rate(step - 1, training.steps, training.optimizer),
                "finite": numbers.finite,
                "tokens_per_second": round(rate, 1),
            }
            | memory
        )
        display.step(step, loss=numbers.loss, tokens_per_second=rate, finite=numbers.finite)
        self._guard.observe(step, numbers.loss, numbers.grad_norm, finite=numbers.finite)


def _peak_memory(device: torch.device) -> dict[str, int]:
    """Most bytes that torch's allocator has had in this process so far; nothing on a CPU.

    The allocator works when kernels are launched, so after a step's launch the step is in it,
    however far the device is. Memory that a run loses step by step shows as growth.
    """
    if device.type != "cuda":
        return {}
    statistics = torch.cuda.memory_stats(device)  # of which each figure alone is a whole reading
    return {
        "peak_allocated_bytes": statistics["allocated_bytes.all.peak"],
        "peak_reserved_bytes": statistics["reserved_bytes.all.peak"],
    }


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0
