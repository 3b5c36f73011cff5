"""The trainer on a GPU: the loss, steps that never wait for the device, generators, refusals."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gptoss_builder.errors import DeviceError
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import CARDS, Target
from gptoss_builder.train import rng
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.device import GIB, require_memory, training_device
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.loop import train
from gptoss_builder.train.loss import linear_cross_entropy
from gptoss_builder.train.step import Stepper
from tests.tolerances import assert_close
from tests.train.runs import lines

pytestmark = pytest.mark.gpu


def _card() -> Target:
    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    return next(card for card in CARDS.values() if card.arch == arch)


def _plan(folder: Path, *, compiled: bool = False, **training: object) -> Plan:
    text = folder / "text.txt"
    text.write_text("".join(f"line {n}: {n * n}\n" for n in range(2000)))
    values = {
        "spec": 1,
        "name": "gpu",
        "model": {
            "vocab": 256,
            "d_model": 128,
            "layers": 2,
            "attention": {
                "heads": 4,
                "kv_heads": 2,
                "head_dim": 32,
                "pattern": ["window", "full"],
                "window": 64,
            },
            "moe": {
                "experts": 4,
                "top_k": 2,
                "shared_experts": 1,
                "d_ff": 128,
                "dispatch": "triton_grouped",
            },
        },
        "training": {
            "context": 256,
            "micro_batch": 4,
            "accumulate": 2,
            "steps": 12,
            "precision": "bf16",
            "optimizer": {"lr": 3e-3, "warmup_steps": 2},
            "loss_chunk": 300,
            "compile": compiled,
            "eval_tokens": 2048,
        }
        | training,
        "data": {"path": str(text), "holdout": 0.1},
        "target": {"gpu": _card().name},
    }
    return resolve(Spec.model_validate(values), _card())


def _batch(plan: Plan) -> StepBatch:
    shape = (2, 4, 257)
    ids = torch.randint(256, shape, device="cuda")
    return StepBatch(ids[..., :-1].contiguous(), ids[..., 1:].contiguous(), 2 * 4 * 256)


def test_bf16_loss_sums_the_weight_gradient_in_fp32() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x_TD = torch.randn(1000, 72, device="cuda", generator=generator).bfloat16()
    w_VD = (torch.randn(1003, 72, device="cuda", generator=generator) * 0.2).bfloat16().float()
    label_T = torch.randint(1003, (1000,), device="cuda", generator=generator)
    exact_x, exact_w = x_TD.double().requires_grad_(), w_VD.double().requires_grad_()
    exact = torch.nn.functional.cross_entropy(exact_x @ exact_w.T, label_T, reduction="sum")
    exact.backward()
    for compiled in (False, True):
        ours_x, ours_w = x_TD.clone().requires_grad_(), w_VD.clone().requires_grad_()
        loss, nll = linear_cross_entropy(ours_x, ours_w, label_T, chunk=64, compiled=compiled)
        loss.backward()
        assert_close(nll, exact, torch.bfloat16)
        assert_close(ours_x.grad, exact_x.grad, torch.bfloat16)
        assert_close(ours_w.grad, exact_w.grad, torch.bfloat16)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_never_waits_for_the_device(tmp_path: Path, compiled: bool) -> None:
    from gptoss_builder.model.build import build

    plan = _plan(tmp_path, compiled=compiled)
    stepper = Stepper(plan, build(plan), NanGuard(plan.spec.training.nan_guard))
    batch = _batch(plan)
    for index in range(2):
        stepper.run(batch, index).wait()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [stepper.run(batch, index) for index in range(2, 5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    losses = [numbers.wait().loss for numbers in pending]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))


def test_a_run_resumes_and_learns(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    quiet = Console(file=io.StringIO())
    whole = train(plan, run_dir=tmp_path / "whole", console=quiet)
    train(plan, run_dir=tmp_path / "parts", stop_after=7, console=quiet)
    parts = train(plan, run_dir=tmp_path / "parts", resume="auto", console=quiet)
    # Atomics of the embedding's backward leave the last bits open on a GPU.
    assert parts.held_out.loss == pytest.approx(whole.held_out.loss, rel=1e-2)
    assert whole.held_out.loss < 5.0
    steps = lines(tmp_path / "whole")
    peaks = [line["peak_allocated_bytes"] for line in steps]
    assert peaks == sorted(peaks)  # so far, in this process
    assert peaks[-1] > whole.model.embedding.nbytes
    assert all(line["peak_reserved_bytes"] >= line["peak_allocated_bytes"] for line in steps)


def test_the_gpu_generator_draws_on_where_it_was() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.manual_seed(4)
    torch.randn(3, device=device)
    states, python = rng.tensors(device), rng.python_state()
    assert all(state.device.type == "cpu" for state in states.values())
    first = torch.randn(5, device=device)
    rng.restore(states, python, device)
    assert torch.equal(torch.randn(5, device=device), first)


def test_another_architecture_and_too_little_memory_are_refused(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    foreign = plan.target.model_copy(update={"arch": "sm75", "name": "t4"})
    with pytest.raises(DeviceError, match=r"build is for sm75 \(t4\), but cuda:0 is"):
        training_device(plan.model_copy(update={"target": foreign}))
    device = training_device(plan)
    require_memory(plan, device)
    _, total = torch.cuda.mem_get_info(device)
    margin = plan.spec.target.model_copy(update={"margin_gib": total / GIB})
    greedy = plan.spec.model_copy(update={"target": margin})
    with pytest.raises(DeviceError, match="GiB too little"):
        require_memory(plan.model_copy(update={"spec": greedy}), device)
