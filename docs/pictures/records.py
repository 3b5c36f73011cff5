"""From a benchmark's record to the page and the picture beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gptoss_builder.files import write_text

FOLDER = Path(__file__).parents[1] / "benchmarks"

Page = Callable[[dict[str, Any], str], str]
Drawing = Callable[[dict[str, Any]], str]


def files(source: Path, page: Page, drawing: Drawing) -> dict[Path, str]:
    """What a record comes to: the texts of the page and of the picture, by their files."""
    record = json.loads(source.read_text(encoding="utf-8"))
    return {
        source.with_suffix(".md"): page(record, source.stem),
        source.with_suffix(".svg"): drawing(record),
    }


def write_newest(pattern: str, page: Page, drawing: Drawing, *, folder: Path = FOLDER) -> int:
    """Write both for the last record, by name, that matches; 2 if there is none."""
    records = sorted(folder.glob(pattern))
    if not records:
        print(f"no {pattern} in {folder}; the benchmark writes it", file=sys.stderr)
        return 2
    for path, text in files(records[-1], page, drawing).items():
        write_text(path, text)
        print(path)
    return 0
