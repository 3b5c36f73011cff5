"""Predicted and measured peak memory of training steps on the GPU at hand.

    python -m benchmarks.memory --target h200 --out memory.json
    python -m benchmarks.memory --only lite periods

Each spec is planned, built and trained for a few steps on random tokens, and what torch's
allocator had allocated and reserved at most is printed beside the plan's figures, after a check
that the loss is finite. Workspaces and compiled code of one spec are gone before the next.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from gptoss_builder.plan.schema import Plan

ALLOCATORS = {"expandable": "expandable_segments:True", "native": "expandable_segments:False"}
MIB = 2**20
GIB = 2**30

MOE = "model.moe."
TRAIN = "training."
GROUPED = {MOE + "dispatch": "grouped_mm"}
FINE = {MOE + "experts": 64, MOE + "top_k": 8, MOE + "d_ff": 512, TRAIN + "micro_batch": 4}
WIDE = {"model.d_model": 1536, MOE + "d_ff": 1408, MOE + "experts": 16, "model.vocab": 64000}
EAGER = {TRAIN + "compile": False}
MATH = {"model.attention.backend": "math", TRAIN + "context": 1024}

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
            "model.attention.sinks": False,
        },
    },
    "eager": {
        "eager": EAGER,
        "eager, period 3": EAGER | {TRAIN + "checkpoint_every": 3},
        "eager, stacked": EAGER | {MOE + "dispatch": "stacked"},
        "eager, fp32, math": EAGER
        | MATH
        | {MOE + "dispatch": "stacked", TRAIN + "precision": "fp32"},
        "eager, bf16, math": EAGER | MATH,
    },
    "shapes": {
        "64 experts, top 8": FINE,
        "64 experts, top 8, period 1": FINE | {TRAIN + "checkpoint_every": 1},
        "24 layers": {"model.layers": 24, TRAIN + "micro_batch": 4},
        "1.2B": WIDE,
        "1.2B, period 3": WIDE | {TRAIN + "checkpoint_every": 3},
    },
}
"""What differs from specs/gpt_oss_lite.yaml without checkpointing or accumulation, by group."""


def main() -> None:
    """Read the arguments, then train and print each row."""
    options = _parser().parse_args()
    # read when torch first touches the GPU, so before it is imported
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[options.allocator]
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA GPU here: nothing to measure")
    from benchmarks.measure import machine, write_json

    facts: dict[str, Any] = machine() | {"allocator": options.allocator}
    torch.zeros(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    facts |= {"total_bytes": total, "context_bytes": total - free - torch.cuda.memory_reserved()}
    print(facts)
    print(
        f"{'spec':<30}{'allocated GiB':>20}{'error':>8}{'MiB':>8}"
        f"{'reserved GiB':>20}{'error':>8}  peak"
    )
    rows = []
    for group in options.only:
        for name, changes in GROUPS[group].items():
            row = measure(name, changes, options.target, options.steps)
            rows.append(row)
            show(row)
            if options.out is not None:
                write_json(options.out, facts | {"rows": rows})
    measured = [row for row in rows if "allocated" in row]
    for kind in ("allocated", "reserved"):
        errors = [row[f"planned_{kind}"] / row[kind] - 1 for row in measured]
        print(
            f"{kind}: {len(errors)} specs, error from {min(errors):+.2%} to {max(errors):+.2%}, "
            f"median of its size {statistics.median(map(abs, errors)):.2%}"
        )


def measure(name: str, changes: dict[str, Any], target: str, steps: int) -> dict[str, Any]:
    """Plan and train one spec; the row has no measurement if it ran out of memory."""
    import torch

    from gptoss_builder.pipeline import make_plan

    plan = make_plan(spec_of(name, changes), target=target)
    estimate = plan.memory.training
    assert estimate is not None
    row: dict[str, Any] = {
        "name": name,
        "changes": changes,
        "planned_allocated": estimate.allocated_bytes,
        "planned_reserved": estimate.reserved_bytes,
        "planned_moments": {one.name: one.allocated_bytes for one in estimate.moments},
        "peak": estimate.peak,
    }
    clean()
    try:
        train(plan, steps)
        row["allocated"] = torch.cuda.max_memory_allocated()
        row["reserved"] = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        row["context"] = total - free - torch.cuda.memory_reserved()  # with the kernels loaded
    except torch.OutOfMemoryError as error:
        row["out_of_memory"] = str(error)
    finally:
        clean()
    return row


def train(plan: Plan, steps: int) -> None:
    """Do `steps` optimizer steps on random tokens; the peaks are then those of the last one.

    Raises:
        SystemExit: the loss is not finite.
    """
    import torch

    from gptoss_builder.model.build import build
    from gptoss_builder.train.data import StepBatch
    from gptoss_builder.train.guard import NanGuard
    from gptoss_builder.train.step import Stepper

    training = plan.spec.training
    assert training is not None
    stepper = Stepper(plan, build(plan), NanGuard(training.nan_guard))
    shape = (2, training.accumulate, training.micro_batch, training.context)
    for index in range(steps):
        if index == steps - 1:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        tokens, labels = torch.randint(plan.spec.model.vocab, shape, device="cuda")
        pending = stepper.run(StepBatch(tokens, labels, labels.numel()), index)
    if not pending.wait().finite:
        raise SystemExit(f"{plan.spec.name}: the loss is not finite; its memory means nothing")


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


def clean() -> None:
    """Give back everything that a row held, workspaces and compiled code included."""
    import torch

    gc.collect()
    torch._dynamo.reset()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def show(row: dict[str, Any]) -> None:
    """Print one row."""
    if "allocated" not in row:
        print(f"{row['name']:<30}  out of memory", flush=True)
        return
    cells = [f"{row['name']:<30}"]
    for kind in ("allocated", "reserved"):
        planned, actual = row[f"planned_{kind}"], row[kind]
        cells.append(f"{planned / GIB:>9.3f} /{actual / GIB:>9.3f}{planned / actual - 1:>+8.2%}")
        if kind == "allocated":
            cells.append(f"{(planned - actual) / MIB:>+8.0f}")
    print(*cells, f" {row['peak']}", sep="", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare predicted and measured peak memory.")
    add = parser.add_argument
    add("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="default: all")
    add("--target", default="h200")
    add("--steps", type=int, default=3, help="steps; the last is measured (default: 3)")
    add("--allocator", choices=list(ALLOCATORS), default="expandable")
    add("--out", type=Path, help="write the rows as JSON")
    return parser


if __name__ == "__main__":
    main()
