"""Writes docs/check.svg, the picture of the README: `python docs/pictures/check.py`."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from checkers.output.text import render
from checkers.report import Report
from gptoss_builder.pipeline import check

ROOT = Path(__file__).parents[2]
FAULTS = (
    ("  d_model: 768", "  d_modle: 768"),
    ("    kv_heads: 4", "    kv_heads: 3"),
    ("lr: 4.0e-4", "lr: 4e4"),
    ("gpu: a100-80gb", "gpu: t4"),
)
"""What is changed in the shipped spec for the picture."""
WIDTH = 112


def main() -> None:
    """Check a spec with a few faults and export what the terminal shows."""
    text = (ROOT / "specs" / "gpt_oss_lite.yaml").read_text(encoding="utf-8")
    for right, wrong in FAULTS:
        if right not in text:
            raise SystemExit(f"the shipped spec has no {right!r}")
        text = text.replace(right, wrong, 1)
    checked = check("my.yaml", text=text)
    report = Report(("my.yaml",), checked.findings, 0)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
    console.print(Text("$ gptoss-check my.yaml", style="bold"))
    console.print(Text.from_ansi(render(report, colour=True)))
    picture = console.export_svg(title="gptoss-check", theme=MONOKAI, unique_id="check")
    # The fonts of the template are fetched from elsewhere; the reader's own monospace will do.
    start, end = picture.index("@font-face"), picture.rindex("@font-face")
    end = picture.index("}", end) + 1
    (ROOT / "docs" / "check.svg").write_text(picture[:start] + picture[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
