"""Small runs for the tests of the trainer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import CPU
from gptoss_builder.train.loop import Result, train

TEXT = "".join(f"def f{n}(x): return x + {n * n}\n" for n in range(40))


def small_plan(
    folder: Path,
    *,
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **spec: Any,
) -> Plan:
    """Two layers on bytes; `folder` gets the text. 1,170 tokens are 69 sequences of an epoch."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT, encoding="utf-8")
    values = {
        "spec": 1,
        "name": "small",
        "seed": 3,
        "model": {
            "vocab": 256,
            "d_model": 16,
            "layers": 2,
            "attention": {"heads": 2, "kv_heads": 1, "head_dim": 8},
            "moe": {"experts": 3, "top_k": 2, "d_ff": 8},
        }
        | (model or {}),
        "training": {
            "context": 16,
            "micro_batch": 2,
            "steps": 8,
            "precision": "fp32",
            "optimizer": {"lr": 1e-2, "warmup_steps": 2},
            "loss_chunk": 7,
            "eval_tokens": 64,
        }
        | (training or {}),
        "data": {"path": str(text), "holdout": 0.1},
        "target": {"gpu": "cpu"},
    } | spec
    return resolve(Spec.model_validate(values), CPU)


def run(plan: Plan, directory: Path, **arguments: Any) -> Result:
    """`train`, in silence."""
    return train(plan, run_dir=directory, console=Console(file=io.StringIO()), **arguments)


def lines(directory: Path) -> list[dict[str, Any]]:
    """The metrics of every step, without the times."""
    read = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name != "tokens_per_second"}
        for line in read
        if "loss" in line
    ]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )
