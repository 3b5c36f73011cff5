"""Writes the long run's page and picture from its record.

    python -m docs.pictures.long_run

Reads the newest docs/benchmarks/*-long-run.json (made by benchmarks/long_run.py), writes the page
and the picture of the same name.
"""

from __future__ import annotations

import sys
from typing import Any

from docs.pictures.chart import Line, Panel, picture
from docs.pictures.records import write_newest

PATTERN = "*-long-run.json"
GIB = 2**30
BLUE, ORANGE = "#1d4ed8", "#c2410c"

Record = dict[str, Any]


def drawing(record: Record) -> str:
    """Loss, throughput and memory over minutes of training, the resume marked."""
    columns = dict(zip(record["columns"], zip(*record["rows"], strict=True), strict=True))
    minutes = columns["minutes"]
    minute_of = dict(zip(columns["step"], minutes, strict=True))
    marks = [
        (minute_of.get(start - 1, 0.0), f"resumed at step {start - 1:,}")
        for start in record["starts"][1:]
    ]

    def line(name: str, column: str, colour: str, *, unit: float = 1, dashes: str = "") -> Line:
        values = [None if value is None else value / unit for value in columns[column]]
        return Line(name, colour, list(zip(minutes, values, strict=True)), dashes)

    held_out = [(_minute(minute_of, step), loss) for step, loss, _ in record["held_out"]]
    losses = [value for value in columns["loss"] if value is not None]
    panels = [
        Panel(
            "Loss, nats a token",
            [
                line("training, means of 20 steps", "loss", BLUE),
                *([Line("held out", ORANGE, held_out, "", dots=True)] if held_out else []),
            ],
            low=float(int(min(losses))),
            x_name="minutes",
            marks=marks,
        ),
        Panel(
            "Throughput, thousand tokens/s",
            [line("", "tokens_per_second", BLUE, unit=1000)],
            low=0,
            x_name="minutes",
            marks=marks,
        ),
    ]
    if columns["peak_reserved_bytes"][0] is not None:  # no run on a CPU
        lines = []
        lowest = min(*columns["peak_allocated_bytes"], record["planned_allocated_bytes"])
        for kind, colour in (("reserved", ORANGE), ("allocated", BLUE)):
            planned = record[f"planned_{kind}_bytes"] / GIB
            ends = [(0.0, planned), (minutes[-1], planned)]
            lines.append(line(kind, f"peak_{kind}_bytes", colour, unit=GIB))
            lines.append(Line(f"{kind}, planned", colour, ends, "6 4"))
        panels.append(Panel("Peak memory so far, GiB", lines, lowest // GIB, "minutes", marks))
    return picture(panels)


def _minute(minute_of: dict[int, float], step: int) -> float:
    """The end of the average that a step is in, or of the last one."""
    return next((minute for last, minute in minute_of.items() if last >= step), 0.0)


def page(record: Record, name: str) -> str:
    """The benchmark's page; `name` is the record's file name without its suffix."""
    last = record["rows"][-1]
    tokens = last[0] * record["tokens_per_step"]
    passed = all(check["ok"] for check in record["verdict"])
    lines = [
        f"# A long run on real text, one {record['gpu']}, {record['date']}",
        "",
        f"{record['gpu']}, driver {record['driver']}, torch {record['torch']}, "
        f"Triton {record['triton']}. The model of",
        "`specs/gpt_oss_lite.yaml` with `accumulate: 1`, no checkpointing and `backward: save`,",
        f"{record['tokens_per_step']:,} tokens a step, on source code and documentation with a BPE",
        f"of its own, {len(record['parts'])} parts, each stopped by SIGTERM and all but the first "
        "resumed;",
        f"{last[0]:,} of {record['steps_planned']:,} steps, {tokens / 1e6:.0f} million tokens. "
        "Measured by `benchmarks/long_run.py`.",
        "",
        f"![Loss, throughput and memory over time]({name}.svg)",
        "",
        f"## {'Every check passed' if passed else 'NOT every check passed'}",
        "",
        "| check | found | |",
        "|---|---|---|",
    ]
    lines += [
        f"| {check['what']} | {check['found']} | {'ok' if check['ok'] else '**no**'} |"
        for check in record["verdict"]
    ]
    lines += [
        "",
        "## Parts",
        "",
        "| part | steps | tokens/s | minutes | first step after, s | to save and end, s |",
        "|---|---|---|---|---|---|",
    ]
    for number, (part, rate) in enumerate(
        zip(record["parts"], record["tokens_per_second"], strict=True), 1
    ):
        lines.append(
            f"| {number} | {part['steps'][0]:,} … {part['steps'][1]:,} | {rate:,} | "
            f"{part['training_seconds'] / 60:.2f} | {part['to_first_step_seconds']:.1f} | "
            f"{part['to_save_seconds']:.1f} |"
        )
    lines += [
        "",
        "Tokens/s leave out a part's first ten steps, held-out losses and saving. Minutes are from",
        "the first step to the signal, held-out losses included. Which files are held out goes by",
        "the hash of their content, so they are of the same projects as those trained on.",
        "",
        "| step | held-out loss | unigram entropy |",
        "|---|---|---|",
        *(
            f"| {step:,} | {loss:.4f} | {entropy:.4f} |"
            for step, loss, entropy in record["held_out"]
        ),
        "",
        f"The averages are in [{name}.json]({name}.json). Made by "
        "`python -m docs.pictures.long_run`.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(write_newest(PATTERN, page, drawing))
