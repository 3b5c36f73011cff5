"""AdamW, mixed precision, clipping and the schedule against plain formulas."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from gptoss_builder.errors import DivergedError, InputError
from gptoss_builder.spec.schema import NanGuardSpec, OptimizerSpec
from gptoss_builder.train import optim
from gptoss_builder.train.guard import NanGuard
from tests.tolerances import assert_close


def _spec(**changes: float) -> OptimizerSpec:
    return OptimizerSpec.model_validate({"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-6} | changes)


class _Small(nn.Module):
    """One parameter of each kind."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embedding = nn.Parameter(torch.randn(7, 5, generator=generator))
        self.wo = nn.Parameter(torch.randn(5, 5, generator=generator))
        self.sinks = nn.Parameter(torch.randn(3, generator=generator))
        self.register_buffer("table", torch.arange(3.0))

    def forward(self) -> Tensor:
        low = self.embedding.to(self.wo.dtype) @ self.wo
        return low.float().square().sum() + (self.sinks * self.table).square().sum()


def _by_hand(
    weight: Tensor, gradients: list[Tensor], spec: OptimizerSpec, *, decay: float, clip: float
) -> Tensor:
    """AdamW as Loshchilov and Hutter write it, in float64."""
    weight = weight.detach().double()
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    beta1, beta2 = spec.betas
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double() * clip
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        update = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + spec.eps)
        weight = weight - spec.lr * decay * weight - spec.lr * update
    return weight


def test_steps_follow_adamw_with_decay_on_matrices_only() -> None:
    model, spec = _Small(), _spec()
    optimizer = optim.adamw(model, spec)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = [
        {name: torch.randn_like(p) * k for name, p in before.items()} for k in (1.0, 0.1, 3.0)
    ]
    for step in gradients:
        for name, parameter in model.named_parameters():
            parameter.grad = step[name].clone()
        norm = optim.gradient_norm(optimizer)
        optim.step(optimizer, lr=spec.lr, norm=norm, grad_clip=0.0, skip=None)
    for name, parameter in model.named_parameters():
        decay = 0.1 if name == "wo" else 0.0
        exact = _by_hand(before[name], [g[name] for g in gradients], spec, decay=decay, clip=1.0)
        assert_close(parameter, exact, name=name)


def test_an_nn_embedding_is_not_decayed() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3))
    groups = optim.adamw(model, _spec()).param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(model[1].weight)}


def test_a_large_gradient_is_clipped_to_the_norm_and_a_small_one_is_left() -> None:
    for factor, clip in ((100.0, 1.0), (1e-3, 1.0)):
        model, spec = _Small(), _spec(weight_decay=0.0, eps=1.0)  # eps 1: steps scale with g
        optimizer = optim.adamw(model, spec)
        before = torch.zeros(5, 5)
        with torch.no_grad():
            model.wo.zero_()  # so that the whole weight is the update, unrounded
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, factor)
        exact_norm = factor * math.sqrt(sum(p.numel() for p in model.parameters()))
        gradient = model.wo.grad.clone()
        norm = optim.gradient_norm(optimizer)
        assert float(norm) == pytest.approx(exact_norm, rel=1e-6)
        optim.step(optimizer, lr=spec.lr, norm=norm, grad_clip=clip, skip=None)
        scale = min(1.0, clip / exact_norm)
        exact = _by_hand(before, [gradient], spec, decay=0.0, clip=scale)
        assert_close(model.wo, exact)


@pytest.mark.parametrize("poison", ["gradient", "loss"])
def test_a_step_that_is_not_finite_changes_neither_weights_nor_state(poison: str) -> None:
    model, spec = _Small(), _spec()
    optimizer = optim.adamw(model, spec)
    guard = NanGuard(NanGuardSpec())
    before = [p.detach().clone() for p in model.parameters()]
    for loss in (torch.tensor(1.0), torch.tensor(math.nan if poison == "loss" else 1.0)):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if poison == "gradient":
            model.wo.grad[2, 3] = math.nan
        elif not loss.isnan():
            continue
        norm = optim.gradient_norm(optimizer)
        skip = guard.skip(loss, norm)
        optim.step(optimizer, lr=spec.lr, norm=norm, grad_clip=1.0, skip=skip)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    for state in optimizer.state.values():
        assert all(not tensor.any() for tensor in state.values())


def test_the_guard_stops_after_so_many_steps_in_a_row() -> None:
    guard = NanGuard(NanGuardSpec(max_consecutive=3))
    for finite in (False, False, True, False, False):
        guard.observe(0, 1.0, 1.0, finite=finite)
    with pytest.raises(DivergedError, match="3 steps in a row up to step 9"):
        guard.observe(9, math.nan, 1.0, finite=False)


def test_a_guard_that_is_off_never_skips() -> None:
    guard = NanGuard(NanGuardSpec(enabled=False, consent="tests"))
    assert guard.skip(torch.tensor(math.nan), torch.tensor(1.0)) is None


def test_in_fp32_the_model_itself_computes() -> None:
    model = _Small()
    assert optim.MixedPrecision(model, "fp32").module is model


def test_in_bf16_only_big_matrices_are_copied_and_the_rest_is_shared() -> None:
    model = _Small()
    compute = optim.MixedPrecision(model, "bf16").module
    assert compute.wo.dtype == torch.bfloat16
    assert torch.equal(compute.wo, model.wo.bfloat16())
    assert compute.embedding is model.embedding
    assert compute.sinks is model.sinks
    assert compute.table is model.table
    assert model.wo.dtype == torch.float32


def test_bf16_gradients_accumulate_in_fp32_and_are_freed() -> None:
    model = _Small()
    compute = optim.MixedPrecision(model, "bf16").module
    compute().backward()
    first = model.wo.grad.clone()
    assert first.dtype == torch.float32
    assert compute.wo.grad is None
    for _ in range(300):  # a bf16 sum stops growing at 256 times its increment
        compute().backward()
    assert_close(model.wo.grad, 301 * first)
    assert_close(
        model.embedding.grad / 301,
        2 * (model.embedding.double() @ model.wo.double()) @ model.wo.double().T,
        torch.bfloat16,
    )


def test_small_updates_reach_the_masters_and_then_the_bf16_copy() -> None:
    # 1 − 6e-4 rounds to 1 in bf16: without masters nothing would ever move.
    model = nn.Module()
    model.wo = nn.Parameter(torch.ones(4, 4))
    mixed = optim.MixedPrecision(model, "bf16")
    optimizer = optim.adamw(model, _spec(weight_decay=0.0))
    for _ in range(100):
        mixed.module.wo.float().sum().backward()
        optim.step(
            optimizer, lr=6e-4, norm=optim.gradient_norm(optimizer), grad_clip=0.0, skip=None
        )
        mixed.refresh()
    assert_close(model.wo, torch.full((4, 4), 1 - 100 * 6e-4, dtype=torch.float64))
    assert torch.equal(mixed.module.wo, model.wo.bfloat16())


def test_bf16_for_a_module_without_known_matrices_is_refused() -> None:
    with pytest.raises(InputError, match="no parameter of the module is named"):
        optim.MixedPrecision(nn.Linear(3, 3), "bf16")


def test_masters_that_are_not_fp32_are_refused() -> None:
    with pytest.raises(InputError, match=r"parameter weight is torch\.bfloat16"):
        optim.MixedPrecision(nn.Linear(3, 3).bfloat16(), "fp32")


def test_the_schedule_warms_up_to_the_peak_and_ends_at_the_floor() -> None:
    spec = _spec(lr=1.0, min_lr_ratio=0.1, warmup_steps=4)
    rates = [optim.learning_rate(index, 24, spec) for index in range(24)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[13] == pytest.approx(0.55)
    assert rates[23] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[3:]))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (5, 5), (5, 9), (5, 4), (2, 0)])
def test_every_step_has_a_finite_positive_rate(steps: int, warmup: int) -> None:
    spec = _spec(lr=1.0, min_lr_ratio=0.1, warmup_steps=warmup)
    rates = [optim.learning_rate(index, steps, spec) for index in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
