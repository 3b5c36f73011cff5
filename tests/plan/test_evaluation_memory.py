"""The guard looks at training alone: a held-out loss must not need more than that."""

from __future__ import annotations

from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import lookup
from gptoss_builder.train.evaluate import held_out_chunk
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.loss import cross_entropy_sum
from gptoss_builder.train.step import PendingNumbers, Stepper
from tests.plan.oracle import LiveStorages, fake_kernels
from tests.plan.specs import lite


def held_out_peak(plan):
    """Bytes of one held-out batch beside the masters, the copies and the optimizer's state."""
    training, live = plan.spec.training, LiveStorages()
    mocked = mock.patch.object(PendingNumbers, "__init__", return_value=None)
    with fake_kernels(), FakeTensorMode(allow_non_fake_inputs=True), live, mocked:
        stepper = Stepper(plan, Transformer(plan), NanGuard(training.nan_guard))
        tokens_BT = torch.zeros((training.micro_batch, training.context), dtype=torch.int64)
        live.moment = "held out"
        with torch.no_grad():
            x_BTD, _ = stepper.trainable.hidden(tokens_BT)
            cross_entropy_sum(
                x_BTD.flatten(0, 1),
                stepper.trainable.head_weight,
                tokens_BT.flatten(),
                chunk=held_out_chunk(training.loss_chunk, tokens_BT.numel()),
            )
    return live.peaks["held out"]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("target", "precision"), [("h200", "bf16"), ("h200", "fp32"), ("cpu", "fp32")]
)
@pytest.mark.parametrize("chunk", [512, 100_000])
@pytest.mark.parametrize("every", [0, 1])
def test_a_held_out_loss_needs_less_than_a_step(compiled, target, precision, chunk, every):
    spec = lite(
        model__vocab=60_000,
        model__layers=2,
        model__d_model=256,
        training__context=1000,
        training__micro_batch=2,
        training__accumulate=1,
        training__precision=precision,
        training__loss_chunk=chunk,
        training__checkpoint_every=every,
        training__compile=compiled,
    )
    plan = resolve(spec, lookup(target))
    largest = max(moment.allocated_bytes for moment in plan.memory.training.moments)
    eager = plan.execution.model_copy(update={"compile": False})  # fake tensors are not compiled
    assert held_out_peak(plan.model_copy(update={"execution": eager})) < largest
