"""The specs of the memory benchmark, by what differs from specs/gpt_oss_lite.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

if TYPE_CHECKING:
    from gptoss_builder.plan.schema import MemoryEstimate, Plan

Use = Literal["training", "serving", "held-out loss"]
MOE = "model.moe."
ATTENTION = "model.attention."
TRAIN = "training."
SERVE = "inference."
GROUPED = {MOE + "dispatch": "grouped_mm"}
FINE = {MOE + "experts": 64, MOE + "top_k": 8, MOE + "d_ff": 512, TRAIN + "micro_batch": 4}
WIDE = {"model.d_model": 1536, MOE + "d_ff": 1408, MOE + "experts": 16, "model.vocab": 64000}
EAGER = {TRAIN + "compile": False}
MATH = {ATTENTION + "backend": "math", TRAIN + "context": 1024}
FP32 = EAGER | MATH | {MOE + "dispatch": "stacked", TRAIN + "precision": "fp32"}
HEADS = {
    ATTENTION + "heads": 32,
    ATTENTION + "head_dim": 128,
    "model.vocab": 8192,
    MOE + "d_ff": 256,
    MOE + "shared_experts": 0,
}
"""Much attention beside little else, so that its backward is the peak."""

GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "periods": {f"period {n}": {TRAIN + "checkpoint_every": n} for n in (0, 1, 2, 3, 4, 6, 12)},
    "lite": {
        "save": {MOE + "backward": "save"},
        "grouped_mm": GROUPED,
        "grouped_mm, save, period 2": GROUPED
        | {MOE + "backward": "save", TRAIN + "checkpoint_every": 2},
        "stacked": {MOE + "dispatch": "stacked"},
        "accumulate 4": {TRAIN + "accumulate": 4},
        "micro-batch 2": {TRAIN + "micro_batch": 2},
        "context 16,384": {TRAIN + "context": 16384, TRAIN + "micro_batch": 2},
        "untied": {"model.tie_embeddings": False},
        "vocabulary 8,192": {"model.vocab": 8192},
        "vocabulary 8,192, period 1": {"model.vocab": 8192, TRAIN + "checkpoint_every": 1},
        "vocabulary 201,088": {"model.vocab": 201_088, TRAIN + "loss_chunk": 4096},
        "no shared expert, no sinks": {
            MOE + "shared_experts": 0,
            ATTENTION + "sinks": False,
        },
    },
    "eager": {
        "eager": EAGER,
        "eager, period 3": EAGER | {TRAIN + "checkpoint_every": 3},
        "eager, stacked": EAGER | {MOE + "dispatch": "stacked"},
        "eager, fp32, math": FP32,
        "eager, bf16, math": EAGER | MATH,
    },
    "shapes": {
        "64 experts, top 8": FINE,
        "64 experts, top 8, period 1": FINE | {TRAIN + "checkpoint_every": 1},
        "24 layers": {"model.layers": 24, TRAIN + "micro_batch": 4},
        "1.2B": WIDE,
        "1.2B, period 3": WIDE | {TRAIN + "checkpoint_every": 3},
    },
    "attention": {
        "32 heads, cuDNN": HEADS,
        "32 heads, flash": HEADS | {ATTENTION + "backend": "flash"},
    },
    "serving": {
        "serving, batch 1": {},
        "serving, batch 8": {SERVE + "batch": 8},
        "serving, windows of 16,384": {
            ATTENTION + "pattern": ["window"],
            ATTENTION + "window": 16384,
            SERVE + "batch": 8,
            SERVE + "prefill_chunk": 1024,
        },
        "serving, math": {ATTENTION + "backend": "math", SERVE + "context": 16384}
        | {SERVE + "batch": 2},
        "serving, fp32, math": FP32 | {SERVE + "context": 8192},
        "serving, 64 experts, top 8": FINE | {SERVE + "batch": 8, SERVE + "context": 32768},
        "serving, 64 experts, grouped_mm": FINE
        | GROUPED
        | {SERVE + "batch": 8, SERVE + "context": 32768},
        "serving, 32 heads": HEADS | {SERVE + "batch": 8, SERVE + "context": 32768},
        # so few queries that FlashAttention-2 splits the keys
        "serving, 52 heads, short chunks": HEADS
        | {ATTENTION + "heads": 52, SERVE + "context": 32768, SERVE + "prefill_chunk": 256},
    },
    "held-out": {
        "held-out loss": {},
        "held-out loss, vocabulary 8,192, period 1": {
            "model.vocab": 8192,
            TRAIN + "checkpoint_every": 1,
        },
        "held-out loss, eager, fp32, math": FP32,
    },
}
"""What differs from specs/gpt_oss_lite.yaml without checkpointing or accumulation, by group."""
SPECS = {name: changes for group in GROUPS.values() for name, changes in group.items()}
"""All of them, by name."""
MEASURED = tuple(GROUPS)
"""Groups that the record in docs/benchmarks has, and that are measured if none is named."""
_USES: dict[str, Use] = {"serving": "serving", "held-out": "held-out loss"}
USES: dict[str, Use] = {
    name: _USES.get(group, "training") for group, specs in GROUPS.items() for name in specs
}
"""What each spec's process does at its peak, by name."""


def estimate_of(plan: Plan, use: Use) -> MemoryEstimate:
    """What the plan says of a use; of a held-out loss, that it needs no more than a step."""
    estimate = plan.memory.inference if use == "serving" else plan.memory.training
    assert estimate is not None
    return estimate


def spec_of(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """specs/gpt_oss_lite.yaml with dotted fields replaced, no checkpointing, no accumulation."""
    path = Path(__file__).parents[1] / "specs" / "gpt_oss_lite.yaml"
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    plain = {TRAIN + "checkpoint_every": 0, TRAIN + "accumulate": 1}
    for field, value in (plain | changes).items():
        *parents, last = field.split(".")
        place = values
        for parent in parents:
            place = place[parent]
        place[last] = value
    return values | {"name": "".join(c if c.isalnum() else "-" for c in name)}
