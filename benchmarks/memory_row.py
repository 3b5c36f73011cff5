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
from benchmarks.memory_specs import SPECS, USES, Use, estimate_of, spec_of

if TYPE_CHECKING:
    from gptoss_builder.plan.schema import Plan
    from gptoss_builder.train.step import Stepper

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
    """Plan one spec and do what it is for; the row has no measurement if it ran out of memory.

    Args:
        name: of the spec.
        target: card that the plan is for.
        steps: optimizer steps, or prompts; the last is measured.
        alone: nothing else is on the card, so what is not the allocator's is the context.
    """
    import torch

    from gptoss_builder.pipeline import make_plan

    plan, use = make_plan(spec_of(name, SPECS[name]), target=target), USES[name]
    estimate = estimate_of(plan, use)
    row: dict[str, Any] = {
        "name": name,
        "use": use,
        "changes": SPECS[name],
        "planned_allocated": estimate.allocated_bytes,
        "planned_reserved": estimate.reserved_bytes,
        "planned_moments": {one.name: one.allocated_bytes for one in estimate.moments},
        "peak": estimate.peak,
    }
    try:
        row |= measured(plan, use, steps)
    except torch.OutOfMemoryError as error:
        return row | {"out_of_memory": str(error)}
    if alone:
        free, total = torch.cuda.mem_get_info()
        row["context"] = total - free - torch.cuda.memory_reserved()  # with the kernels loaded
    return row


def measured(plan: Plan, use: Use, steps: int) -> dict[str, Any]:
    """Do what a plan is for, and return what was allocated and reserved at most.

    Raises:
        SystemExit: the loss is not finite.
        RunError: the logits are not finite.
    """
    from benchmarks.memory_uses import evaluate, peaks, serve

    if use == "serving":
        return serve(plan, steps)
    stepper = train(plan, steps)
    return evaluate(plan, stepper) if use == "held-out loss" else peaks()


def train(plan: Plan, steps: int) -> Stepper:
    """Do `steps` optimizer steps on random tokens; the peaks are then those of the last one.

    Raises:
        SystemExit: the loss is not finite.
    """
    import torch

    from benchmarks.memory_uses import forget_peaks
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
            forget_peaks()
        tokens, labels = torch.randint(plan.spec.model.vocab, shape, device=plan.execution.device)
        pending = stepper.run(StepBatch(tokens, labels, labels.numel()), index)
    if not pending.wait().finite:
        raise SystemExit(f"{plan.spec.name}: the loss is not finite; its memory means nothing")
    return stepper


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Peak memory of one spec.")
    add = parser.add_argument
    add("name", nargs="?", choices=list(SPECS), metavar="SPEC", help="default: the card alone")
    add("--target", default="h200")
    add(
        "--steps",
        type=positive,
        default=3,
        help="steps or prompts; the last is measured (default: 3)",
    )
    add("--allocator", choices=list(ALLOCATORS), default="expandable")
    add("--alone", action="store_true", help="measure the CUDA context too")
    return parser


if __name__ == "__main__":
    main()
