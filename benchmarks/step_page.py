"""A record of `benchmarks.train_step` as Markdown, for a dated page under docs/benchmarks.

python -m benchmarks.step_page docs/benchmarks/2026-11-30-h200-train-step.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.step_table import Found

COLUMNS = (
    ("ms", "ms", ".1f"),
    ("predicted ms", "predicted_ms", ".1f"),
    ("off", "prediction_error", "+.1%"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("MFU", "mfu", ".1%"),
    ("allocated GiB", "allocated_gib", ".2f"),
    ("reserved", "reserved_gib", ".2f"),
    ("planned", "planned_gib", ".2f"),
    ("first step, s", "first_s", ".1f"),
)


def page(record: Found) -> str:
    """The rows, what alternatives compare to, and each profile; a failed row says why.

    Raises:
        KeyError: it is no record of `benchmarks.train_step`.
    """
    rows = record["rows"]
    facts = ", ".join(record["machine"].values())
    if "dense_tflops" in record:
        facts += f"; a dense bf16 product in the same run: {record['dense_tflops']:.0f} TFLOP/s"
    lines = [f"{facts}.", "", *_table(rows)]
    for row in rows:
        lines += [
            f"- {name} does {ratio:.2f} × the tokens/s of {row['row']}"
            for name, ratio in row.get("ours_to_it", {}).items()
        ]
    for row in rows:
        if "profile" in row:
            lines += ["", *_profile(row["row"], row["profile"])]
    return "\n".join(lines) + "\n"


def _table(rows: list[Found]) -> list[str]:
    header = ["row", "parameters, active", *(title for title, _, _ in COLUMNS)]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for row in rows:
        sizes = (
            f"{row['parameters'] / 1e6:.0f}M, {row['active'] / 1e6:.0f}M" if "active" in row else ""
        )
        cells = [format(row[key], form) if key in row else "" for _, key, form in COLUMNS]
        if "error" in row or row.get("out_of_memory"):
            cells[0] = row.get("error", "out of memory").replace("|", "\\|")
        lines.append(f"| {' | '.join([row['row'], sizes, *cells])} |")
    return [*lines, ""]


def _profile(name: str, profile: Found) -> list[str]:
    lines = [
        f"{name}, by component: busy {profile['busy_ms']:.1f} ms a step, idle "
        f"{profile['idle']:.1%}",
        "",
        "| component | ms | predicted | launches |",
        "|---|---|---|---|",
    ]
    for part in profile["components"]:
        predicted = part["predicted_ms"]
        expected = "" if predicted is None else f"{predicted:.2f}"
        lines.append(f"| {part['name']} | {part['ms']:.2f} | {expected} | {part['launches']:.0f} |")
    return lines


def main() -> int:
    """Print the page of the record that is named; 2 if it cannot be read."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        text = page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError) as error:
        print(f"{sys.argv[1]} is no record of benchmarks.train_step: {error!r}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
