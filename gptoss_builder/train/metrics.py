"""metrics.jsonl: one JSON object a line for every optimizer step and every held-out loss."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from gptoss_builder.files import write_text

FILE = "metrics.jsonl"


class Metrics:
    """Appends lines; a number that is not finite, which JSON does not know, becomes null."""

    def __init__(self, directory: Path, *, step: int) -> None:
        """Open the file and drop what it has of steps after `step`, and lines that are damaged.

        A run that went on after its last checkpoint and was cut off repeats those steps, and
        their lines with them.
        """
        path = directory / FILE
        if path.exists():
            content = path.read_bytes()
            kept = b"".join(line + b"\n" for line in content.splitlines() if _step(line) <= step)
            if kept != content:
                write_text(path, kept.decode())
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, values: Mapping[str, float | bool]) -> None:
        """Append one line."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        self._file.write(json.dumps(finite) + "\n")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _step(line: bytes) -> float:
    try:
        return float(json.loads(line.decode())["step"])
    except (ValueError, KeyError, TypeError, OverflowError):  # cut off in a crash, or overwritten
        return math.inf
