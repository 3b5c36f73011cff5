"""Writes the page and picture of the curves beside the spread of seeds, from their record.

    python -m docs.pictures.curves

Reads the newest docs/benchmarks/*-curves.json (made by benchmarks/curves.py), writes the page and
the picture of the same name.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from benchmarks.curves import table
from docs.pictures.chart import Line, Panel, picture
from docs.pictures.records import write_newest

PATTERN = "*-curves.json"
BLUE, ORANGE = "#1d4ed8", "#c2410c"

Record = dict[str, Any]


def drawing(record: Record) -> str:
    """The mean curves with the spread around the second; below, difference and spread."""
    rows = record["rows"]
    ours, theirs = record["curves"]
    band = [
        (row["step"], row["theirs"] - row["spread"], row["theirs"] + row["spread"]) for row in rows
    ]

    lowest = [*(low for _, low, _ in band), *(row["ours"] for row in rows)]

    def line(name: str, key: str, colour: str, dashes: str = "") -> Line:
        points = [(row["step"], row[key]) for row in rows]
        return Line(name, colour, points, dashes, dots=True)

    return picture(
        [
            Panel(
                f"Loss, means of {record['sizes']['window']} steps and "
                f"{record['sizes']['seeds']} seeds, nats a token",
                [line(theirs, "theirs", ORANGE), line(ours, "ours", BLUE, "6 4")],
                low=float(math.floor(min(lowest))),
                x_name="steps",
                bands=[(ORANGE, band)],
            ),
            Panel(
                "Difference of the two for the same seed, and the spread of seeds, nats a token",
                [
                    line("spread", "spread", ORANGE),
                    line("difference", "difference", BLUE),
                ],
                low=0,
                x_name="steps",
            ),
        ]
    )


def page(record: Record, name: str) -> str:
    """The benchmark's page; `name` is the record's file name without its suffix."""
    ours, theirs = record["curves"]
    sizes = ", ".join(f"{key} {value}" for key, value in record["sizes"].items())
    return "\n".join(
        [
            f"# {ours} and {theirs} beside the spread of seeds, one {record['gpu']}",
            "",
            f"{record['gpu']}, driver {record['driver']}, torch {record['torch']}, "
            f"Triton {record['triton']}; {sizes}; the",
            "same batches of real text for every run. Measured by `benchmarks/curves.py`, which",
            "says how difference and spread are defined.",
            "",
            f"![Curves and their differences]({name}.svg)",
            "",
            table(record),
            "",
            f"The loss of every step is in [{name}.json]({name}.json). Made by "
            "`python -m docs.pictures.curves`.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(write_newest(PATTERN, page, drawing))
