"""What `benchmarks.memory_row` measures besides training steps: serving, and a held-out loss.

Dimensions: B sequences, T tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gptoss_builder.generate import stream
from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train.data import Loader
from gptoss_builder.train.evaluate import held_out_loss
from gptoss_builder.train.step import Stepper

NEW_TOKENS = 4
"""Drawn after each prompt; prompt and these fill the context."""


def serve(plan: Plan, prompts: int) -> dict[str, Any]:
    """Peaks while random prompts are taken in and continued, as `generate` does it.

    Those of the last prompt, in all and of its two moments; of the first, in which kernels are
    compiled, what was allocated.

    Raises:
        RunError: the logits are not finite.
    """
    inference = plan.spec.inference
    assert inference is not None
    model = build(plan)
    shape = (inference.batch, inference.context - NEW_TOKENS)
    allocated = []
    for _ in range(prompts):
        new = stream(model, torch.randint(plan.spec.model.vocab, shape), NEW_TOKENS)
        forget_peaks()
        next(new)  # makes the cache and takes in the prompt
        prefill = peaks()
        forget_peaks()
        assert len(list(new)) == NEW_TOKENS - 1
        decode = peaks()
        allocated.append(max(prefill["allocated"], decode["allocated"]))
    return {
        "allocated": allocated[-1],
        "reserved": max(prefill["reserved"], decode["reserved"]),
        "moments": {"prefill": prefill["allocated"], "decode": decode["allocated"]},
        "first_allocated": allocated[0],
    }


def evaluate(plan: Plan, stepper: Stepper) -> dict[str, Any]:
    """Peaks of a held-out loss after a step, as training takes it, the second time.

    Raises:
        SystemExit: the loss is not finite.
    """
    training, vocab = plan.spec.training, plan.spec.model.vocab
    assert training is not None
    loader = Loader(
        RandomData(training.context, vocab, 2 * training.micro_batch),
        accumulate=training.accumulate,
        micro_batch=training.micro_batch,
        context=training.context,
        vocab=vocab,
        device=torch.device(plan.execution.device),
    )
    allocated = []
    for _ in range(2):
        forget_peaks()
        held_out = held_out_loss(
            stepper.compute,
            stepper.trainable,
            loader,
            tokens=2 * training.micro_batch * training.context,
            vocab=vocab,
            chunk=training.loss_chunk,
            stop=lambda: False,
        )
        if held_out is None or not math.isfinite(held_out.loss):
            raise SystemExit(f"{plan.spec.name}: no held-out loss; its memory means nothing")
        found = peaks()
        allocated.append(found["allocated"])
    return found | {"first_allocated": allocated[0]}


class RandomData:
    """`train.data.TrainingData` of random tokens, to be held out."""

    identity = "random"

    def __init__(self, context: int, vocab: int, held_out_count: int) -> None:
        self._context, self._vocab = context, vocab
        self.held_out_count = held_out_count

    def sequence(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens and labels, the same for the same position."""
        random = np.random.default_rng(position)
        ids = random.integers(self._vocab, size=self._context + 1)
        return ids[:-1], ids[1:]

    held_out = sequence


def forget_peaks() -> None:
    """Let the peaks begin at what is there now."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()


def peaks() -> dict[str, int]:
    """Bytes that torch's allocator had at most since `forget_peaks`."""
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
