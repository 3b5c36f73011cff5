"""A long run in parts: real text, stopped by a signal, resumed, judged.

    python -m benchmarks.long_run spec runs/long.yaml --data SHARDS --tokenizer JSON --steps 7000
    gptoss-build runs/long.yaml --target h200 --out build/long-h200
    python -m benchmarks.long_run part build/long-h200 --run runs/long --seconds 460
    python -m benchmarks.long_run part build/long-h200 --run runs/long --seconds 460 --resume
    python -m benchmarks.long_run record build/long-h200 --run runs/long --out long-run.json

A part is `gptoss-train` itself, in a process of its own. It gets SIGTERM after so many seconds of
training, saves and ends; the next part must start where it ended. `record` writes averages of the
metrics and a verdict, and fails (exit code 1) where the run stalled, drifted or did not resume.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.arguments import new_file, positive
from benchmarks.long_run_record import read_lines, record
from gptoss_builder.errors import GptossError, InputError
from gptoss_builder.files import write_text

LITE = Path(__file__).parents[1] / "specs" / "gpt_oss_lite.yaml"
PARTS = "parts.jsonl"
POLL_SECONDS = 0.2


def spec(out: Path, *, data: Path, tokenizer: Path, steps: int) -> None:
    """Write the 502M spec with the values of a run of minutes in place of days."""
    values = yaml.safe_load(LITE.read_text(encoding="utf-8"))
    values["model"]["moe"]["backward"] = "save"
    values["training"] |= {
        "accumulate": 1,
        "steps": steps,
        "checkpoint_every": 0,
        "save_every": 0,
        "eval_every": 500,
        "eval_tokens": 2**19,
    }
    values["training"]["optimizer"]["warmup_steps"] = 300
    values["data"] = {"path": str(data.resolve()), "tokenizer": str(tokenizer.resolve())}
    write_text(out, yaml.safe_dump(values, sort_keys=False))


def part(build: Path, run: Path, *, seconds: float, latest: float, resume: bool) -> int:
    """Train for a while, stop by a signal, and hold what was recorded to what was asked.

    Args:
        build: what gptoss-build wrote.
        run: the run directory; `parts.jsonl` there gets a line.
        seconds: from the end of the first step to the signal.
        latest: the signal comes at most so long after the process was started.
        resume: whether this part continues an earlier one.

    Returns:
        0; 1 if training failed, made no step or did not start where the part before ended.
    """
    before = read_lines(run / "run.jsonl")
    if resume != bool(before):
        raise InputError(f"{run} holds {len(before)} parts; give --resume from the second on")
    command = [sys.executable, "-m", "gptoss_builder.cli.train", str(build), "--run", str(run)]
    times = _watch(
        [*command, "--sample", "0", *(["--resume"] if resume else [])], run, seconds, latest
    )
    entries = read_lines(run / "run.jsonl")
    faults = _faults(before, entries, int(times["exit_code"]))
    for fault in faults:
        print(f"long_run: {fault}", file=sys.stderr)
    if faults:
        return 1
    line = json.dumps(times | {"resumed": resume, "steps": entries[-1]["steps"]})
    with (run / PARTS).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    print(line)
    return 0


def _watch(command: Sequence[str], run: Path, seconds: float, latest: float) -> dict[str, float]:
    """Run a trainer, signal it in time, and return its exit code and where its time went."""
    metrics = run / "metrics.jsonl"
    size = _size(metrics)
    began = time.monotonic()
    first = stopped = None
    child = subprocess.Popen(command)
    try:
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if first is None and _size(metrics) > size:
                first = now
            over = now - began >= latest or (first is not None and now - first >= seconds)
            if stopped is None and over:
                child.send_signal(signal.SIGTERM)
                stopped = now
    finally:
        if child.poll() is None:  # this command was stopped itself
            child.terminate()
            child.wait()
    ended = time.monotonic()
    first = ended if first is None else first
    stopped = ended if stopped is None else stopped
    return {
        "exit_code": child.returncode,
        "to_first_step_seconds": round(first - began, 1),
        "training_seconds": round(stopped - first, 1),
        "to_save_seconds": round(ended - stopped, 1),
    }


def _faults(
    before: list[dict[str, Any]], entries: list[dict[str, Any]], exit_code: int
) -> list[str]:
    if exit_code not in {0, 3}:
        return [f"gptoss-train ended with exit code {exit_code}"]
    if len(entries) != len(before) + 1:
        return [f"run.jsonl has {len(entries)} parts after {len(before)} before"]
    (start, end), events = entries[-1]["steps"], entries[-1]["events"]
    found = [] if end > start else [f"no step was made at step {start}"]
    if before:
        step = before[-1]["steps"][1]
        want = f"resumed from step-{step:08d}"
        if start != step or want not in events:
            found.append(f"{want} was to be; the part starts at step {start} with {events}")
    return found


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 is bad input, 1 a run that failed or that the verdict is against."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "spec":
            spec(options.out, data=options.data, tokenizer=options.tokenizer, steps=options.steps)
            return 0
        if options.command == "part":
            return part(
                options.build,
                options.run,
                seconds=options.seconds,
                latest=options.latest,
                resume=options.resume,
            )
        content = record(options.build, options.run)
        write_text(options.out, json.dumps(content, indent=None, separators=(",", ":")) + "\n")
    except (GptossError, OSError) as error:
        print(f"long_run: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, GptossError) else 1
    for check in content["verdict"]:
        print(f"{'ok  ' if check['ok'] else 'FAIL'} {check['what']}: {check['found']}")
    return 0 if all(check["ok"] for check in content["verdict"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A long run in parts, judged.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("spec", help="write the spec of the run").add_argument
    add("out", type=new_file)
    add("--data", type=Path, required=True, metavar="SHARDS")
    add("--tokenizer", type=Path, required=True, metavar="JSON")
    add("--steps", type=positive, required=True)
    add = commands.add_parser("part", help="train for a while").add_argument
    add("build", type=Path, metavar="BUILD_DIR")
    add("--run", type=Path, required=True, metavar="DIR")
    add("--seconds", type=float, required=True, help="of training, from the end of step one")
    add("--latest", type=float, default=525.0, help="seconds after the start (default: 525)")
    add("--resume", action="store_true")
    add = commands.add_parser("record", help="judge the run and write its record").add_argument
    add("build", type=Path, metavar="BUILD_DIR")
    add("--run", type=Path, required=True, metavar="DIR")
    add("--out", type=new_file, required=True, metavar="JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
