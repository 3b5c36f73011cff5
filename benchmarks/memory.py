"""Predicted and measured peak memory of training and serving on the GPU at hand.

    python -m benchmarks.memory --target h200 --jobs 8 --out memory.json
    python -m benchmarks.memory --only eager "period 1" "micro-batch 2"
    python -m benchmarks.memory --only attention serving held-out

Each spec is planned and built, and trained for a few steps on random tokens or served a few
prompts of them that fill its context, in a process of its own (`benchmarks.memory_row`). What
torch's allocator had allocated and reserved at most is printed beside the plan's figures, after
a check that the loss or the logits are finite. A held-out loss is taken after training steps, and
beside it stands the plan of a step, which it must not pass. Several processes can share the card:
their peaks are their own, and those that run at once are planned to need less than the card has.
The context that a process has with its kernels loaded is measured with one job only, because the
card does not say whose memory is whose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import new_file, positive
from benchmarks.memory_row import ALLOCATORS
from benchmarks.memory_specs import GROUPS, MEASURED, SPECS, USES, estimate_of, spec_of
from gptoss_builder.errors import GptossError
from gptoss_builder.files import write_text
from gptoss_builder.pipeline import make_plan

ROOT = Path(__file__).parents[1]
SHARE = 0.85
"""Part of the card's memory that what runs at once may be planned to need."""
MIB = 2**20
GIB = 2**30
Row = dict[str, Any]


class Job(NamedTuple):
    """A spec to be measured."""

    name: str
    planned_bytes: int
    """What its process takes of the card, by the plan: reserved memory and context."""


def main() -> int:
    """Read the arguments, measure and print each row.

    Returns:
        The exit code: 1 if a row has no measurement, 2 for bad input or a card that is not there.
    """
    parser = _parser()
    options = parser.parse_args()
    compilers = max((os.cpu_count() or 1) // options.jobs, 1)  # of each process
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(compilers))
    names = [name for only in options.only for name in GROUPS.get(only, [only])]
    try:
        jobs = [Job(name, planned_bytes(name, options.target)) for name in names]
    except GptossError as error:
        parser.error(f"--target: {error}")
    facts = run_child(child(options, None), "the card")
    if "failed" in facts:
        print(facts["failed"], file=sys.stderr)
        return 2
    facts |= {"allocator": options.allocator}
    print(facts)
    print(
        f"{'spec':<42}{'allocated GiB':>20}{'error':>9}{'MiB':>8}"
        f"{'reserved GiB':>20}{'error':>9}  what: peak",
        flush=True,
    )
    rows: dict[str, Row] = {}

    def done(job: Job, row: Row) -> None:
        rows[job.name] = row
        show(row)
        if options.out is not None:
            ordered = [rows[name] for name in names if name in rows]
            write_text(options.out, json.dumps(facts | {"rows": ordered}, indent=1) + "\n")

    room = int(SHARE * facts["total_bytes"])
    run_jobs(jobs, options.jobs, room, lambda j: run_child(child(options, j.name), j.name), done)
    summarize(rows.values())
    return int(any("allocated" not in row for row in rows.values()))


def planned_bytes(name: str, target: str) -> int:
    """Memory of the card that a spec's process is planned to take.

    Raises:
        SpecError: the spec is not legal on the target, or does not fit it.
        TargetError: the target is not in the table.
    """
    plan = make_plan(spec_of(name, SPECS[name]), target=target)
    return estimate_of(plan, USES[name]).total_bytes


def run_jobs(
    jobs: Iterable[Job],
    limit: int,
    room: int,
    work: Callable[[Job], Row],
    done: Callable[[Job, Row], None],
) -> None:
    """Do `work` for each job, the largest first, at most `limit` at once and within `room` bytes.

    `done` gets each result, in the order in which they end.
    """
    waiting = sorted(jobs, key=lambda job: job.planned_bytes, reverse=True)
    running: dict[Future[Row], Job] = {}
    with ThreadPoolExecutor(limit) as pool:
        while waiting or running:
            while (job := next_job(waiting, list(running.values()), limit, room)) is not None:
                waiting.remove(job)
                running[pool.submit(work, job)] = job
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                done(running.pop(future), future.result())


def next_job(waiting: Sequence[Job], running: Sequence[Job], limit: int, room: int) -> Job | None:
    """The first job that fits beside those that run; one that fits nowhere runs by itself."""
    if len(running) >= limit:
        return None
    if not running:
        return waiting[0] if waiting else None
    left = room - sum(job.planned_bytes for job in running)
    return next((job for job in waiting if job.planned_bytes <= left), None)


def child(options: argparse.Namespace, name: str | None) -> list[str]:
    """The command that measures one spec; None: the card."""
    command = [sys.executable, "-m", "benchmarks.memory_row"]
    command += [] if name is None else [name]
    command += ["--target", options.target, "--steps", str(options.steps)]
    return [*command, "--allocator", options.allocator, *(["--alone"] * (options.jobs == 1))]


def run_child(command: Sequence[str], name: str) -> Row:
    """What a process prints as its last line; a row with `failed` if it does not end well."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        printed = "" if lines else "nothing printed, "
        reason = done.stderr.strip()[-2000:] or f"{printed}exit code {done.returncode}"
        return {"name": name, "failed": reason}
    try:
        row: Row = json.loads(lines[-1])
    except json.JSONDecodeError as error:
        return {"name": name, "failed": f"{lines[-1]}: {error}"}
    return row


def show(row: Row) -> None:
    """Print one row."""
    if "allocated" not in row:
        print(f"{row['name']:<42}  {row.get('failed', 'out of memory')}", flush=True)
        return
    cells = [f"{row['name']:<42}"]
    for kind in ("allocated", "reserved"):
        planned, actual = row[f"planned_{kind}"], row[kind]
        cells.append(f"{planned / GIB:>9.3f} /{actual / GIB:>9.3f}{planned / actual - 1:>+9.2%}")
        if kind == "allocated":
            cells.append(f"{(planned - actual) / MIB:>+8.0f}")
    print(*cells, f"  {row['use']}: {row['peak']}", sep="", flush=True)


def summarize(rows: Iterable[Row]) -> None:
    """Print how far the plan was off, of each use by itself."""
    measured = [row for row in rows if "allocated" in row]
    uses = dict.fromkeys(row["use"] for row in measured)
    for use, kind in itertools.product(uses, ("allocated", "reserved")):
        errors = [row[f"planned_{kind}"] / row[kind] - 1 for row in measured if row["use"] == use]
        print(
            f"{use}, {kind}: {len(errors)} specs, error from {min(errors):+.2%} to "
            f"{max(errors):+.2%}, median of its size {statistics.median(map(abs, errors)):.2%}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare predicted and measured peak memory.")
    add = parser.add_argument
    names = [*GROUPS, *SPECS]
    add(
        "--only",
        nargs="+",
        choices=names,
        default=list(MEASURED),
        metavar="NAME",
        help=f"groups ({', '.join(GROUPS)}; default: {', '.join(MEASURED)}) or specs of "
        "benchmarks/memory_specs.py",
    )
    add("--target", default="h200")
    add(
        "--steps",
        type=positive,
        default=3,
        help="steps or prompts; the last is measured (default: 3)",
    )
    add("--jobs", type=positive, default=1, help="processes at once (default: 1)")
    add("--allocator", choices=list(ALLOCATORS), default="expandable")
    add("--out", type=new_file, help="write the rows as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
