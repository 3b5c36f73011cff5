"""One optimizer step of whole models on the GPU at hand: checked, then timed, row by row.

    python -m benchmarks.train_step --target h200 --out step.json
    python -m benchmarks.train_step --rows lite:0 lite:0:save long:auto hf hf-as-is --profile

A row is `SHAPE[:PERIOD[:BACKWARD]]` (see `benchmarks.step_rows`; put rows of one shape after each
other, so that they share compiled code), or an alternative (`benchmarks.hugging_face`). Before
the first row of a shape is timed, the very model that is to be timed is compared with the plain
fp32 one (`stacked`, `math`, not compiled) of the same weights (`benchmarks.step_check`). Times are
medians over single steps, everything included that the trainer does: forward, loss, backward,
clipping, AdamW, refreshing the bf16 copies. Tokens are random, so routing is near balance.

    MFU = (6 · active parameters + 3 · FLOPs of attention scores) · tokens/s / dense peak

with the scores over exact causal, windowed pairs; recomputation does not count. Memory is what
torch's allocator had allocated and reserved at most during the timed steps; `planned` is the
plan's reserved peak and `predicted` its step time. A row that fails is printed with its error
and the next one runs; the exit code is then 1. Out of memory is a result, not a failure.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import cast, get_args

import torch
from torch import Tensor

from benchmarks import hugging_face, step_check, step_profile, step_table
from benchmarks.arguments import new_file, positive
from benchmarks.measure import machine, milliseconds, require_gpu, write_json
from benchmarks.step_rows import DEFAULT_ROWS, Row, parse_row, plan_of
from benchmarks.step_table import Found
from gptoss_builder.errors import GptossError
from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import Dispatch
from gptoss_builder.targets import lookup
from gptoss_builder.train.allocator import use_expandable_segments
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.step import Stepper

GIB = 2**30
DENSE_SIZE = 8192
Step = Callable[[], Tensor]


def main() -> int:
    """Read the arguments, then check, time and print each row; 1 if one failed."""
    parser = _parser()
    options = parser.parse_args()
    try:
        lookup(options.target)
    except GptossError as error:
        parser.error(f"--target: {error}")
    require_gpu()
    use_expandable_segments()  # as the trainer does: the plan's reserved bytes are for them
    record: Found = {"machine": machine(), "dense_tflops": dense_tflops(), "rows": []}
    print(", ".join(record["machine"].values()), end=", ")
    print(f"dense bf16 product of {DENSE_SIZE}³: {record['dense_tflops']:.0f} TFLOP/s")
    print(step_table.HEADER, flush=True)
    rows: list[Found] = record["rows"]
    for row in options.rows:
        rows.append(run_row(row, options, rows))
        if options.out is not None:
            write_json(options.out, record)
    return 1 if any("error" in found for found in rows) else 0


def dense_tflops() -> float:
    """Rate of a large bf16 product of random data, for comparison across runs."""
    a, b = (torch.randn(DENSE_SIZE, DENSE_SIZE, device="cuda").bfloat16() for _ in range(2))
    return 2 * DENSE_SIZE**3 / milliseconds(lambda: a @ b) / 1e9


def run_row(row: Row, options: argparse.Namespace, before: list[Found]) -> Found:
    """Measure one row and print it; whatever it raises becomes part of what was found."""
    found: Found = {"row": row.name, "shape": row.shape, "alternative": row.alternative}
    free()
    try:
        plan = plan_of(
            row,
            target=options.target,
            dispatch=options.dispatch,
            compiled=False if options.no_compile else None,
        )
        found |= _settings(plan)
        known = any(each.get("checked") and each["shape"] == row.shape for each in before)
        found |= measure(row, plan, options, check=not known)
        print(step_table.line(found), flush=True)
    except torch.OutOfMemoryError:
        found["out_of_memory"] = True
        print(f"{row.name:<18}  out of memory", flush=True)
    except Exception as error:  # noqa: BLE001  # a bad row must not cost the rest of a rented hour
        found["error"] = f"{type(error).__name__}: {error}"
        print(f"{row.name:<18}  failed: {found['error']}", flush=True)
        traceback.print_exc()
    finally:
        free()
    if row.alternative and "ms" in found:
        found["ours_to_it"] = step_table.ratios(found, before)
        for name, ratio in found["ours_to_it"].items():
            print(f"{'':<18}  {name} does {ratio:.2f} × the tokens/s of {row.name}", flush=True)
    elif "profile" in found:
        print(step_profile.text(found["profile"]), flush=True)
    return found


def _settings(plan: Plan) -> Found:
    training = plan.spec.training
    assert training is not None
    return {
        "checkpoint_every": training.checkpoint_every,
        "backward": plan.execution.backward,
        "dispatch": plan.execution.dispatch,
        "precision": plan.execution.precision,
        "tokens": training.micro_batch * training.context,
        "parameters": plan.parameters.total,
        "active": plan.parameters.active,
    }


def measure(row: Row, plan: Plan, options: argparse.Namespace, *, check: bool) -> Found:
    """Time the row's step.

    Raises:
        ValueError: the model is wrong (see `step_check`), or the loss is not finite.
    """
    batch = random_batch(plan)
    found: Found = {}
    if row.alternative:
        how = cast(hugging_face.How, row.alternative)
        make = functools.partial(hugging_face.make_step, plan, batch.tokens_ABT[0], how)
    else:
        exact = step_check.plain_result(plan, batch) if check else None
        free()
        make = functools.partial(ours, plan, batch, exact, found)
    began = time.monotonic()
    step = make()
    step()
    torch.cuda.synchronize()
    found["first_s"] = time.monotonic() - began
    seconds = median_seconds(step, options.steps)
    found |= _figures(plan, seconds)
    if not row.alternative:
        found |= _promises(plan, seconds)
        if options.profile:
            found["profile"] = step_profile.profile_step(step, plan, seconds)
    return found


def ours(plan: Plan, batch: StepBatch, exact: step_check.Exact | None, found: Found) -> Step:
    """A step of this project's trainer; with `exact`, its model is compared with it first."""
    training = plan.spec.training
    assert training is not None
    stepper = Stepper(plan, build(plan), NanGuard(training.nan_guard))
    if exact is not None:
        found["checked"] = step_check.compare(stepper.trainable, batch, exact)
        torch.cuda.empty_cache()
    index = itertools.count()
    return lambda: stepper.run(batch, next(index)).numbers[0]


def random_batch(plan: Plan) -> StepBatch:
    """One optimizer step of random tokens on the GPU."""
    training = plan.spec.training
    assert training is not None
    shape = (1, training.micro_batch, training.context + 1)
    generator = torch.Generator("cuda").manual_seed(0)
    ids = torch.randint(plan.spec.model.vocab, shape, device="cuda", generator=generator)
    return StepBatch(ids[..., :-1].contiguous(), ids[..., 1:].contiguous(), ids[..., 1:].numel())


def median_seconds(step: Step, steps: int) -> float:
    """Median time of a step, by events of the device, after three to warm up."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        loss = step()
        mark.record()
    torch.cuda.synchronize()
    if not bool(loss.isfinite()):
        raise ValueError("the loss is not finite: the times mean nothing")
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times) / 1e3


def _figures(plan: Plan, seconds: float) -> Found:
    training, execution = plan.spec.training, plan.execution
    assert training is not None
    rate = training.micro_batch * training.context / seconds
    peak = plan.target.bf16_rate if execution.precision == "bf16" else plan.target.fp32_rate
    flops = 6 * plan.parameters.active + 3 * plan.flops.forward.scores
    return {
        "ms": seconds * 1e3,
        "tokens_per_second": rate,
        "mfu": flops * rate / peak,
        "allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
    }


def _promises(plan: Plan, seconds: float) -> Found:
    """What the plan said of the same step."""
    found: Found = {}
    if plan.memory.training is not None:
        found["planned_gib"] = plan.memory.training.reserved_bytes / GIB
    if plan.cost is not None:
        found["predicted_ms"] = plan.cost.step_seconds * 1e3
        found["prediction_error"] = plan.cost.step_seconds / seconds - 1
    return found


def free() -> None:
    """Give back what the last row held; compiled code stays only on disk."""
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Time training steps of whole models.")
    add = parser.add_argument
    default = [parse_row(name) for name in DEFAULT_ROWS]
    add("--rows", nargs="+", type=parse_row, default=default, metavar="ROW", help="see the module")
    add("--target", default="h200", help="the card at hand (default: h200)")
    add("--dispatch", choices=get_args(Dispatch), help="in place of the specs' own")
    add("--steps", type=positive, default=20, help="timed steps a row (default: 20)")
    add("--no-compile", action="store_true")
    add("--profile", action="store_true", help="milliseconds by component below each row")
    add("--out", type=new_file, help="JSON file of all figures, rewritten after each row")
    return parser


if __name__ == "__main__":
    sys.exit(main())
