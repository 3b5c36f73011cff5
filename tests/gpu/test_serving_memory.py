"""What serving and a held-out loss allocate on a GPU against the plan.

Each case is a fresh process, in which nothing else has been allocated, and does what a row of
`benchmarks.memory` does. The limits are those that docs/memory.md promises of training.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gptoss_builder.plan.memory import HANDLES, WORKSPACE_BYTES
from gptoss_builder.plan.schema import Plan
from tests.plan.test_evaluation_memory import held_out_peak

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("memory guard")]

ROOT = Path(__file__).parents[2]
LOW, HIGH, FEW = 0.015, 0.03, 64 * 2**20
"""What the plan may be below and above what is measured, and bytes that it may be above anyway."""

ATTENTION = {
    "heads": 16,
    "kv_heads": 4,
    "head_dim": 64,
    "pattern": ["window", "full"],
    "window": 128,
}
MODEL = {
    "vocab": 32_000,
    "d_model": 512,
    "layers": 4,
    "attention": ATTENTION,
    "moe": {
        "experts": 8,
        "top_k": 2,
        "shared_experts": 1,
        "d_ff": 1024,
        "dispatch": "triton_grouped",
    },
}
TRAINING = {
    "context": 2048,
    "micro_batch": 8,
    "steps": 2,
    "precision": "bf16",
    "optimizer": {"lr": 1e-3},
    "loss_chunk": 4096,
}
SERVING = {
    "many sequences": ({}, {"context": 4096, "batch": 32}),
    "a long context": ({}, {"context": 131_072, "batch": 4}),
    "the explicit softmax": ({"backend": "math"}, {"context": 8192, "batch": 2}),
}
"""Changes of attention, and the section."""
HELD_OUT = "a held-out loss"

CHILD = """
import json, sys
from pathlib import Path
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.train.allocator import use_expandable_segments

use_expandable_segments()
from benchmarks.memory_row import measured

print("\\n" + json.dumps(measured(read_plan(Path(sys.argv[1])), sys.argv[2], 2)))
"""


def plan_of(case: str) -> Plan:
    """The case's plan for the card at hand."""
    import torch

    from gptoss_builder.plan.resolve import resolve
    from gptoss_builder.spec.schema import Spec
    from gptoss_builder.targets import CARDS

    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    card = next(card for card in CARDS.values() if card.arch == arch)
    attention, inference = SERVING.get(case, ({}, None))
    values = {
        "spec": 1,
        "name": "memory",
        "model": MODEL | {"attention": ATTENTION | attention},
        "training": TRAINING,
        "inference": inference,
        "target": {"gpu": card.name},
    }
    return resolve(Spec.model_validate(values), card)


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Every case's process, all at once: most of their time goes into starting up."""
    from gptoss_builder.plan.artifact import write_plan

    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for case in (*SERVING, HELD_OUT):
            path = tmp_path_factory.mktemp("memory") / "plan.json"
            write_plan(plan_of(case), path)
            use = "serving" if case in SERVING else "held-out loss"
            started[case] = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path), use],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def measured(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    print(figures)
    return figures


def require_near(planned: int, actual: int, name: str) -> None:
    low, high = -LOW * actual, max(HIGH * actual, FEW)
    assert low < planned - actual <= high, f"{name}: planned {planned:,}, measured {actual:,}"


@pytest.mark.parametrize("case", SERVING)
def test_serving_allocates_what_is_planned(case: str, children: dict[str, Any]) -> None:
    found, estimate = measured(children[case]), plan_of(case).memory.inference
    require_near(estimate.allocated_bytes, found["allocated"], "the peak")
    for moment in estimate.moments:
        planned = moment.allocated_bytes + HANDLES["serving"] * WORKSPACE_BYTES
        require_near(planned, found["moments"][moment.name], moment.name)


def test_a_held_out_loss_allocates_what_its_tensors_take_and_less_than_a_step(
    children: dict[str, Any],
) -> None:
    found, plan = measured(children[HELD_OUT]), plan_of(HELD_OUT)
    most = max(found["allocated"], found["first_allocated"])
    assert most < plan.memory.training.allocated_bytes
    training, model = plan.spec.training, plan.spec.model
    before = 2 * training.micro_batch * training.context * model.d_model  # of the first batch
    expected = held_out_peak(plan) + before + HANDLES["training"] * WORKSPACE_BYTES
    require_near(expected, found["allocated"], "the held-out loss")
