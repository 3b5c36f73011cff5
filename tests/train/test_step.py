"""Whole optimizer steps against float64: plain cross-entropy, torch's own clipping and AdamW."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train import compiling
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.loss import IGNORE
from gptoss_builder.train.optim import BIG_MATRICES
from gptoss_builder.train.step import Stepper
from tests.tolerances import assert_close
from tests.train.runs import same, small_plan, weights

STEPS = 5
Ignore = Callable[[Tensor, int], None]


def nothing(labels_ABT: Tensor, step: int) -> None:
    """Every label counts."""


def unequal(labels_ABT: Tensor, step: int) -> None:
    """Each micro-batch has another number of valid labels, the first of step 0 all."""
    for number, labels_BT in enumerate(labels_ABT):
        labels_BT.view(-1)[: (7 * number + step) % labels_BT.numel()] = IGNORE


def one_micro_batch(labels_ABT: Tensor, step: int) -> None:
    """The first micro-batch has none."""
    labels_ABT[0] = IGNORE


def one_step(labels_ABT: Tensor, step: int) -> None:
    """Step 2 has none."""
    if step == 2:
        labels_ABT[:] = IGNORE


def _plan(
    folder: Path,
    *,
    attention: dict[str, Any] | None = None,
    moe: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **model: Any,
) -> Plan:
    return small_plan(
        folder,
        training={
            "accumulate": 3,
            "steps": STEPS,
            "optimizer": {"lr": 1e-2, "warmup_steps": 3, "eps": 1e-4, "weight_decay": 0.3},
        }
        | (training or {}),
        model={
            "init_std": 0.2,
            "attention": {
                "heads": 4,
                "kv_heads": 2,
                "head_dim": 8,
                "pattern": ["window", "full"],
                "window": 5,
            }
            | (attention or {}),
            "moe": {"experts": 3, "top_k": 2, "d_ff": 8, "shared_experts": 1, "aux_loss": 0.05}
            | (moe or {}),
        }
        | model,
    )


def _objective(plan: Plan, model: nn.Module, batch: StepBatch) -> tuple[Tensor, Tensor, Tensor]:
    """What is differentiated, the mean cross-entropy, and the mean auxiliary loss."""
    nll, z_term, aux = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for tokens_BT, labels_BT in zip(batch.tokens_ABT, batch.labels_ABT, strict=True):
        output = model(tokens_BT)
        valid_T = labels_BT.flatten() != IGNORE
        logits_TV = output.logits_BTV.flatten(0, 1)[valid_T]
        lse_T = logits_TV.exp().sum(1).log()
        label_T1 = labels_BT.flatten()[valid_T, None]
        nll = nll + (lse_T - logits_TV.gather(1, label_T1)[:, 0]).sum()
        z_term = z_term + lse_T.square().sum()
        aux = aux + output.aux_loss / len(batch.tokens_ABT)
    loss = nll / batch.valid
    z_term = plan.spec.training.z_loss * z_term / batch.valid
    return loss + z_term + plan.spec.model.moe.aux_loss * aux, loss, aux


def _adamw(plan: Plan, model: nn.Module) -> torch.optim.AdamW:
    spec = plan.spec.training.optimizer
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim > 1 and name != "embedding"].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": spec.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        betas=spec.betas,
        eps=spec.eps,
        foreach=False,
        fused=False,
    )


def _rate(plan: Plan, step: int) -> float:
    spec, number = plan.spec.training.optimizer, step + 1
    if number <= spec.warmup_steps:
        return spec.lr * number / spec.warmup_steps
    floor = spec.lr * spec.min_lr_ratio
    turn = math.pi * (number - spec.warmup_steps) / (STEPS - spec.warmup_steps)
    return floor + (spec.lr - floor) * (1 + math.cos(turn)) / 2


def _batch(plan: Plan, step: int, ignore: Ignore) -> StepBatch:
    training = plan.spec.training
    shape = (training.accumulate, training.micro_batch, training.context + 1)
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(plan.spec.model.vocab, shape, generator=generator)
    labels = ids[..., 1:].clone()
    ignore(labels, step)
    return StepBatch(ids[..., :-1].contiguous(), labels, int((labels != IGNORE).sum()))


CASES: dict[str, tuple[Ignore, dict[str, Any]]] = {
    "every label": (nothing, {}),
    "unequal micro-batches": (unequal, {}),
    "a micro-batch without labels": (one_micro_batch, {}),
    "a step without labels": (one_step, {}),
    "no clipping": (
        nothing,
        {"training": {"optimizer": {"lr": 1e-2, "warmup_steps": 3, "eps": 1e-4, "grad_clip": 0.0}}},
    ),
    "one token": (unequal, {"training": {"context": 1}}),
    "as many tokens as the window": (unequal, {"training": {"context": 5}}),
    "one token more": (unequal, {"training": {"context": 6}}),
    "one more than a chunk of queries": (
        nothing,
        {"training": {"context": 257, "micro_batch": 1}, "attention": {"window": 256}},
    ),
    "a prime vocabulary, z loss, one chunk": (
        unequal,
        {"vocab": 251, "training": {"loss_chunk": 1000, "z_loss": 0.02}},
    ),
    "three blocks of logits, untied": (unequal, {"vocab": 96, "tie_embeddings": False}),
    "every layer checkpointed": (unequal, {"training": {"checkpoint_every": 1}}),
    "a period beyond the layers, saved": (
        unequal,
        {"training": {"checkpoint_every": 9}, "moe": {"backward": "save"}},
    ),
    "every expert": (nothing, {"moe": {"top_k": 3}}),
    "one layer, one expert, no sinks": (
        nothing,
        {
            "layers": 1,
            "moe": {"experts": 1, "top_k": 1, "shared_experts": 0},
            "attention": {"pattern": ["full"], "sinks": False, "kv_heads": 4},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_float64(tmp_path: Path, case: str) -> None:
    ignore, changes = CASES[case]
    _compare(_plan(tmp_path, **changes), ignore)


@pytest.mark.filterwarnings("ignore")  # the compiler trips over torch's own warnings
@pytest.mark.parametrize("case", ["unequal micro-batches", "one token", "every layer checkpointed"])
def test_compiled_steps_are_those_of_float64(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced, differentiated and partitioned as always, but not made into kernels: in seconds."""
    ignore, changes = CASES[case]
    training = changes.get("training", {}) | {"compile": True}
    torch._dynamo.reset()
    compiling.compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    try:
        _compare(_plan(tmp_path, **changes | {"training": training}), ignore)
    finally:
        torch._dynamo.reset()
        compiling.compiled.cache_clear()


def _compare(plan: Plan, ignore: Ignore) -> None:
    model, exact = build(plan), build(plan).double()
    stepper = Stepper(plan, model, NanGuard(plan.spec.training.nan_guard))
    optimizer = _adamw(plan, exact)
    clip = plan.spec.training.optimizer.grad_clip or math.inf
    for step in range(STEPS):
        batch = _batch(plan, step, ignore)
        numbers = stepper.run(batch, step).wait()
        if not batch.valid:
            assert (numbers.loss, numbers.finite) == (0.0, True)
            continue
        objective, loss, aux = _objective(plan, exact, batch)
        objective.backward()
        norm = nn.utils.clip_grad_norm_(exact.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = _rate(plan, step)
        optimizer.step()
        optimizer.zero_grad()
        assert numbers.loss == pytest.approx(loss.item(), rel=1e-5)
        assert numbers.aux_loss == pytest.approx(aux.item(), rel=1e-5)
        assert numbers.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert_close(ours, theirs, name=name)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])  # the square of 1e30 is infinite
@pytest.mark.parametrize("parameter", ["embedding", "blocks.0.moe.router"])
def test_one_bad_number_in_one_micro_batch_leaves_no_trace(
    tmp_path: Path, precision: str, value: float, parameter: str
) -> None:
    plan = _plan(tmp_path, training={"precision": precision})
    models = []
    for poisoned in (True, False):
        model = build(plan)
        stepper = Stepper(plan, model, NanGuard(plan.spec.training.nan_guard))
        stepper.run(_batch(plan, 0, nothing), 0)
        if poisoned:
            before = weights(model)
            _poison_once(model.get_parameter(parameter), micro_batch=1, value=value)
            numbers = stepper.run(_batch(plan, 1, nothing), 1).wait()
            assert not numbers.finite
            assert same(weights(model), before)
        stepper.run(_batch(plan, 2, nothing), 2)
        models.append(weights(model))
    assert same(*models)


class _Casts(TorchDispatchMode):
    """Shapes of what is cast from fp32 to bf16, and how often copies were refreshed."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()
        self.refreshed = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.refreshed += func is torch.ops.aten._foreach_copy_.default
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
            self.shapes[tuple(out.shape)] += out.dtype == torch.bfloat16
        return out


def test_big_matrices_are_cast_once_a_step_and_the_head_once_a_micro_batch(
    tmp_path: Path,
) -> None:
    plan = _plan(tmp_path, training={"precision": "bf16", "checkpoint_every": 1})
    model = build(plan)
    stepper = Stepper(plan, model, NanGuard(plan.spec.training.nan_guard))
    with _Casts() as casts:
        stepper.run(_batch(plan, 0, nothing), 0)
    assert casts.refreshed == 1
    assert casts.shapes[tuple(model.embedding.shape)] == plan.spec.training.accumulate
    copied = {
        tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in BIG_MATRICES
    }
    assert len(copied) >= 6
    assert not copied & (+casts.shapes).keys()


def _poison_once(parameter: nn.Parameter, *, micro_batch: int, value: float) -> None:
    count = iter(range(1000))

    def hook(gradient: Tensor) -> Tensor:
        if next(count) == micro_batch:
            gradient = gradient.clone()
            gradient.view(-1)[0] = value
        return gradient

    parameter.register_hook(hook)
