"""The memory guard against a real allocator: what it lets through trains, what it refuses cannot.

Each case is a fresh process whose limit is set before anything is allocated, as a small card
would have it. The limit is 7% above the estimate, or 7% below it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("memory guard")]

ROOT = Path(__file__).parents[2]
SLACK = 0.07

Child = tuple[str, str]
"""Case, and whether the guard decides."""


class Running(NamedTuple):
    """A case's process."""

    process: subprocess.Popen[str]
    folder: Path
    limit: int
    """Bytes that it may reserve."""


MODEL = {
    "vocab": 32_000,
    "d_model": 512,
    "layers": 4,
    "attention": {
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 64,
        "pattern": ["window", "full"],
        "window": 128,
    },
    "moe": {"experts": 8, "top_k": 2, "shared_experts": 1, "d_ff": 1024},
}
TRAINING = {
    "context": 2048,
    "micro_batch": 8,
    "steps": 2,
    "precision": "bf16",
    "optimizer": {"lr": 1e-3},
    "loss_chunk": 4096,
    "compile": False,
    "eval_tokens": 4096,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stacked": ({}, {}),
    "triton, period 1": ({"dispatch": "triton_grouped"}, {"checkpoint_every": 1}),
    "triton, save, accumulate": (
        {"dispatch": "triton_grouped", "backward": "save"},
        {"accumulate": 3, "micro_batch": 4},
    ),
    "period 2, short chunks": ({}, {"checkpoint_every": 2, "loss_chunk": 512}),
}

CHILD = """
import json, sys
from pathlib import Path
import torch
from gptoss_builder.errors import DeviceError
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.train.allocator import use_expandable_segments
from gptoss_builder.train.device import training_device, require_memory
from gptoss_builder.train.loop import train

folder, limit, guarded = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "guarded"
plan = read_plan(folder / "plan.json")
use_expandable_segments()
device = training_device(plan)
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(limit / total)
result = {"refused": "", "out_of_memory": False}
try:
    require_memory(plan, device)
except DeviceError as error:
    result["refused"] = str(error)
if guarded and not result["refused"]:
    train(plan, run_dir=folder / "run")
elif not guarded:
    from benchmarks.memory_row import train as steps
    try:
        steps(plan, 2)
    except torch.OutOfMemoryError:
        result["out_of_memory"] = True
result |= {
    "allocated": torch.cuda.max_memory_allocated(),
    "reserved": torch.cuda.max_memory_reserved(),
    "context": total - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved(),
}
print("\\n" + json.dumps(result))
"""


HOW = {"guarded": 1 / (1 - SLACK), "unguarded": 1 / (1 + SLACK)}
"""Limit over estimate."""


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Child, Running]]:
    """Every case in both ways, at once: most of their time goes into starting up."""
    started: dict[Child, Running] = {}
    try:
        for case in CASES:
            for how, over in HOW.items():
                folder = tmp_path_factory.mktemp("guard")
                limit = int(_write_plan(folder, case) * over)
                command = [sys.executable, "-c", CHILD, str(folder), str(limit), how]
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                started[case, how] = Running(process, folder, limit)
        yield started
    finally:
        for running in started.values():
            running.process.kill()
            running.process.communicate()


def _write_plan(folder: Path, case: str) -> int:
    """Write the case's plan, its margin 0; returns what it says is reserved."""
    import torch

    from gptoss_builder.plan.artifact import write_plan
    from gptoss_builder.plan.resolve import resolve
    from gptoss_builder.spec.schema import Spec
    from gptoss_builder.targets import CARDS

    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    card = next(card for card in CARDS.values() if card.arch == arch)
    moe, training = CASES[case]
    text = folder / "text.txt"
    text.write_text("".join(f"line {n}: {n * n}\n" for n in range(20_000)), encoding="utf-8")
    values = {
        "spec": 1,
        "name": "guard",
        "model": MODEL | {"moe": MODEL["moe"] | moe},
        "training": TRAINING | training,
        "data": {"path": str(text), "holdout": 0.1},
        "target": {"gpu": card.name, "margin_gib": 0},
    }
    plan = resolve(Spec.model_validate(values), card)
    write_plan(plan, folder / "plan.json")
    return plan.memory.training.reserved_bytes


def _figures(running: Running) -> dict[str, Any]:
    out, errors = running.process.communicate(timeout=120)
    assert running.process.returncode == 0, errors[-3000:]
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    print({"limit": running.limit} | figures)
    return figures


@pytest.mark.parametrize("case", CASES)
def test_a_spec_7_percent_below_the_limit_trains(case: str, children: dict[Child, Running]) -> None:
    running = children[case, "guarded"]
    figures = _figures(running)
    assert not figures["refused"]
    assert 0 < figures["reserved"] <= running.limit
    record = json.loads((running.folder / "run" / "run.jsonl").read_text(encoding="utf-8"))
    assert record["ran"]["segments"] == "expandable"
    assert record["events"] == []
    assert record["steps"] == [0, 2]


@pytest.mark.parametrize("case", CASES)
def test_a_spec_7_percent_above_the_limit_is_refused_and_would_not_have_fit(
    case: str, children: dict[Child, Running]
) -> None:
    figures = _figures(children[case, "unguarded"])
    assert "GiB too little. At the peak (" in figures["refused"]
    assert "training.micro_batch: " in figures["refused"]
    assert figures["out_of_memory"]
