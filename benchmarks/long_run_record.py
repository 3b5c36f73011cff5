"""The record of a long run: averages of its metrics, and whether it stalled or drifted."""

from __future__ import annotations

import datetime
import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from gptoss_builder.errors import InputError
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.plan.schema import Plan

BIN = 20
"""Steps of an average; none spans two parts."""
WARM = 10
"""First steps of a part, which compile: no throughput is judged there."""
STALL = 3.0
"""A step of more medians than this is a stall."""
RATE_DRIFT = 0.03
"""Of throughput from the first to the last tenth of a part, relative."""
MEMORY_DRIFT = 1e-3
"""Of the peak after the first quarter of a part, relative."""
LOSS_WINDOW, LOSS_RISE = 200, 0.1
"""Steps of an average, and nats that one may be above the lowest before it."""
RESUME_WINDOW, RESUME_SIGMAS = 100, 4.0
"""Steps before and after a resume, and standard errors that the mean may rise by."""
MINUTES = 15.0
"""From the first step of each part to its end, evaluations included, at least."""

COLUMNS = (
    "step",
    "minutes",
    "loss",
    "tokens_per_second",
    "slowest_seconds",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
)
"""Of a row, which is an average: the last step, minutes of training since the start of the run,
mean loss in nats, throughput, the slowest step, and the peaks of the process so far."""

Line = dict[str, Any]
Check = dict[str, Any]


def read_lines(file: Path) -> list[Line]:
    """The objects of a JSON-lines file; none if it is not there.

    Raises:
        InputError: a line is not JSON, such as the last one of a run that was killed.
    """
    if not file.exists():
        return []
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise InputError(f"{file} is not JSON lines: {error}") from error


def record(build: Path, run: Path) -> dict[str, Any]:
    """What a run came to, from its run directory and the plan that it followed.

    Raises:
        InputError: there is no run, or none of at least twice `LOSS_WINDOW` steps; a file of it
            is not JSON lines.
        ArtifactError: the plan cannot be read.
    """
    from benchmarks.measure import machine

    plan = read_plan(build / "plan.json")
    lines, entries = read_lines(run / "metrics.jsonl"), read_lines(run / "run.jsonl")
    steps = [line for line in lines if "loss" in line]
    if len(steps) < 2 * LOSS_WINDOW:
        raise InputError(f"{run} has {len(steps)} steps; {2 * LOSS_WINDOW} are the least to judge")
    return (
        machine()
        | summary(plan, lines, entries, read_lines(run / "parts.jsonl"))
        | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    )


def summary(
    plan: Plan, lines: list[Line], entries: list[Line], times: list[Line]
) -> dict[str, Any]:
    """The part of the record that comes from the run alone.

    Raises:
        InputError: the plan has no training.
    """
    training, estimate = plan.spec.training, plan.memory.training
    if training is None or estimate is None:
        raise InputError("the plan has no training, so there is no run to judge")
    tokens = training.context * training.micro_batch * training.accumulate
    steps = [
        line | {"seconds": tokens / line["tokens_per_second"]} for line in lines if "loss" in line
    ]
    parts = [
        [line for line in steps if start < line["step"] <= end]
        for start, end in (entry["steps"] for entry in entries)
    ]
    parts = [part for part in parts if part]
    minutes = sum(part["training_seconds"] for part in times) / 60
    return {
        "spec": plan.spec.name,
        "steps_planned": training.steps,
        "tokens_per_step": tokens,
        "planned_allocated_bytes": estimate.allocated_bytes,
        "planned_reserved_bytes": estimate.reserved_bytes,
        "starts": [part[0]["step"] for part in parts],
        "parts": times,
        "tokens_per_second": [round(_rate(part[WARM:], tokens)) for part in parts],
        "verdict": verdict(steps, parts, entries, minutes),
        "held_out": [
            [line["step"], round(line["held_out_loss"], 4), round(line["unigram_entropy"], 4)]
            for line in lines
            if "held_out_loss" in line
        ],
        "columns": list(COLUMNS),
        "rows": _rows(parts, tokens),
    }


def verdict(
    steps: list[Line], parts: list[list[Line]], entries: list[Line], minutes: float
) -> list[Check]:
    """Every check, what it found and whether that is well."""
    found: list[dict[str, Any]] = []

    def check(what: str, value: str, *, ok: bool) -> None:
        found.append({"what": what, "found": value, "ok": ok})

    numbers = [line["step"] for line in steps]
    gaps = sum(b - a != 1 for a, b in pairwise([0, *numbers]))
    check("every step from 1 on, once", f"{len(numbers)} steps, {gaps} gaps", ok=not gaps)
    check(f"at least {MINUTES:g} minutes of training", f"{minutes:.2f}", ok=minutes >= MINUTES)
    odd = sum(not line["finite"] or line["loss"] is None for line in steps)
    check("every loss and gradient norm finite", f"{odd} are not", ok=not odd)
    differing = [text for entry in entries for text in entry["differences"]]
    check("what ran is what the plan says", "; ".join(differing) or "it is", ok=not differing)
    _check_resumes(entries, check)
    brief = sum(len(part) <= WARM for part in parts)
    check(f"more than {WARM} steps in every part", f"{brief} have not", ok=not brief)
    if odd or brief:
        return found
    for number, part in enumerate(parts, 1):
        _check_part(number, part, check)
    _check_loss(steps, parts, check)
    return found


def _check_resumes(entries: list[Line], check: Any) -> None:
    for earlier, later in pairwise(entries):
        step = earlier["steps"][1]
        ok = later["steps"][0] == step and f"resumed from step-{step:08d}" in later["events"]
        check("resumed where the part before ended", f"{step} → {later['steps'][0]}", ok=ok)
    check("resumed at least once", f"{len(entries)} parts", ok=len(entries) > 1)


def _check_part(number: int, part: list[Line], check: Any) -> None:
    warm = [line["seconds"] for line in part[WARM:]]
    median, slowest = statistics.median(warm), max(warm)
    check(
        f"part {number}: no step of {STALL:g} medians or more",
        f"slowest {slowest:.3f} s, median {median:.4f} s",
        ok=slowest < STALL * median,
    )
    tenth = max(1, len(warm) // 10)
    drift = statistics.median(warm[:tenth]) / statistics.median(warm[-tenth:]) - 1
    check(
        f"part {number}: throughput of the last tenth within {RATE_DRIFT:.0%} of the first",
        f"{drift:+.2%}",
        ok=abs(drift) <= RATE_DRIFT,
    )
    for kind in ("allocated", "reserved"):
        name = f"peak_{kind}_bytes"
        if name not in part[0]:  # a run on a CPU
            continue
        growth = part[-1][name] / part[len(part) // 4][name] - 1
        check(
            f"part {number}: {kind} memory grew by at most {MEMORY_DRIFT:.1%} after a quarter",
            f"{growth:+.4%}",
            ok=growth <= MEMORY_DRIFT,
        )


def _check_loss(steps: list[Line], parts: list[list[Line]], check: Any) -> None:
    losses = [line["loss"] for line in steps]
    means = [
        statistics.fmean(losses[start : start + LOSS_WINDOW])
        for start in range(0, len(losses) - LOSS_WINDOW + 1, LOSS_WINDOW)
    ]
    rise = max(mean - min(means[: n + 1]) for n, mean in enumerate(means))
    check(
        f"means of {LOSS_WINDOW} steps rise at most {LOSS_RISE:g} above the lowest before",
        f"{rise:.4f}",
        ok=rise <= LOSS_RISE,
    )
    for earlier, later in pairwise(parts):
        a = [line["loss"] for line in earlier[-RESUME_WINDOW:]]
        b = [line["loss"] for line in later[:RESUME_WINDOW]]
        error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
        jump = statistics.fmean(b) - statistics.fmean(a)
        check(
            f"the mean loss of {RESUME_WINDOW} steps is no more than {RESUME_SIGMAS:g} standard "
            "errors higher after the resume than before",
            f"{jump:+.4f}, standard error {error:.4f}",
            ok=jump <= RESUME_SIGMAS * error,
        )


def _rows(parts: list[list[Line]], tokens: int) -> list[list[float | None]]:
    rows: list[list[float | None]] = []
    seconds = 0.0
    for part in parts:
        for first in range(0, len(part), BIN):
            each = part[first : first + BIN]
            seconds += _seconds(each)
            losses = [line["loss"] for line in each if line["loss"] is not None]
            rows.append(
                [
                    each[-1]["step"],
                    round(seconds / 60, 4),
                    round(statistics.fmean(losses), 4) if losses else None,
                    round(_rate(each, tokens)),
                    round(max(line["seconds"] for line in each), 4),
                    each[-1].get("peak_allocated_bytes"),
                    each[-1].get("peak_reserved_bytes"),
                ]
            )
    return rows


def _seconds(lines: list[Line]) -> float:
    return math.fsum(line["seconds"] for line in lines)


def _rate(lines: list[Line], tokens: int) -> float:
    return tokens * len(lines) / _seconds(lines) if lines else 0.0
