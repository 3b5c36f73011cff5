"""Peak memory of one spec of `benchmarks.memory`, in a process of its own; started by it.

    python -m benchmarks.memory_row "period 3" --target h200

prints one row as a line of JSON, the last of its output. Without a name the row has the card's
facts, and what a CUDA context takes before the first kernel.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from benchmarks.arguments import positive
from benchmarks.memory_specs import SPECS, spec_of

if TYPE_CHECKING:
    from gptoss_builder.plan.schema import Plan

ALLOCATORS = {"expandable": "expandable_segments:True", "fixed": "expandable_segments:False"}


def main() -> None:
    """Measure and print."""
    options = _parser().parse_args()
    # read when torch first touches the GPU, so before it is imported
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[options.allocator]
    import torch

    from gptoss_builder.train.allocator import segments

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA GPU here: nothing to measure")
    torch.zeros(1, device="cuda")
    found = segments(torch.device("cuda"))
    if found != options.allocator:
        raise SystemExit(f"the allocator's segments are {found}, not {options.allocator}")
    if options.name is None:
        row = facts()
    else:
        row = measure(options.name, options.target, options.steps, alone=options.alone)
    print(json.dumps(row), flush=True)


def facts() -> dict[str, Any]:
    """The card, and its memory when this process has a context and nothing else runs there."""
    import torch

    from benchmarks.measure import machine

    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    return machine() | {"total_bytes": total, "context_bytes": context}


def measure(name: str, target: str, steps: int, *, alone: bool) -> dict[str, Any]:
    """Plan and train one spec; the row has no measurement if it ran out of memory.

    Args:
        name: of the spec.
        target: card that the plan is for.
        steps: optimizer steps; the last is measured.
        alone: nothing else is on the card, so what is not the allocator's is the context.
    """
    import torch

    from gptoss_builder.pipeline import make_plan

    plan = make_plan(spec_of(name, SPECS[name]), target=target)
    estimate = plan.memory.training
    assert estimate is not None
    row: dict[str, Any] = {
        "name": name,
        "changes": SPECS[name],
        "planned_allocated": estimate.allocated_bytes,
        "planned_reserved": estimate.reserved_bytes,
        "planned_moments": {one.name: one.allocated_bytes for one in estimate.moments},
        "peak": estimate.peak,
    }
    try:
        train(plan, steps)
    except torch.OutOfMemoryError as error:
        return row | {"out_of_memory": str(error)}
    row["allocated"] = torch.cuda.max_memory_allocated()
    row["reserved"] = torch.cuda.max_memory_reserved()
    if alone:
        free, total = torch.cuda.mem_get_info()
        row["context"] = total - free - torch.cuda.memory_reserved()  # with the kernels loaded
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Peak memory of one spec.")
    add = parser.add_argument
    add("name", nargs="?", choices=list(SPECS), metavar="SPEC", help="default: the card alone")
    add("--target", default="h200")
    add("--steps", type=positive, default=3, help="steps; the last is measured (default: 3)")
    add("--allocator", choices=list(ALLOCATORS), default="expandable")
    add("--alone", action="store_true", help="measure the CUDA context too")
    return parser


if __name__ == "__main__":
    main()
