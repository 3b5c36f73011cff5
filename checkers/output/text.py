"""For people: position, message, the line with a caret, and what to do."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from checkers.report import Report
from gptoss_builder.findings import Finding, Severity

WIDTH = 100
"""Characters of a source line that are shown."""

Paint = Callable[[str, str], str]
_STYLES = {Severity.ERROR: "bold red", Severity.ADVICE: "yellow"}


def render(report: Report, *, colour: bool = False) -> str:
    """The report as text; `colour` adds ANSI escapes."""
    paint = _painter() if colour else _plain
    blocks = [_block(finding, paint) for finding in report.findings]
    return "".join(f"{block}\n\n" for block in blocks) + _summary(report, paint) + "\n"


def _plain(text: str, style: str) -> str:
    return text


def _painter() -> Paint:
    from rich.color import ColorSystem
    from rich.style import Style

    def paint(text: str, style: str) -> str:
        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

    return paint


def _block(finding: Finding, paint: Paint) -> str:
    where = finding.file or "<mapping>"
    if finding.position is not None:
        where += f":{finding.position.line}:{finding.position.column}"
    head = (
        f"{paint(printable(where), 'bold')}: {paint(finding.severity, _STYLES[finding.severity])} "
        f"{paint(finding.code, 'bold')} {printable(finding.message)}"
    )
    lines = [head, *_excerpt(finding, paint)]
    if finding.fix:
        lines.append(f"  {paint('do this:', 'green')} {printable(finding.fix)}")
    return "\n".join(lines)


def _excerpt(finding: Finding, paint: Paint) -> list[str]:
    if finding.position is None or not finding.source.strip():
        return []
    shown, offset = _cut(finding.source, finding.position.column - 1)
    before = shown[: finding.position.column - 1 - offset]
    margin = f"{finding.position.line:>6} | "
    pad = "".join("\t" if character == "\t" else " " * _cells(character) for character in before)
    bar = " " * (len(margin) - 2) + "| "
    return [
        paint(margin, "dim") + printable(shown),
        paint(bar, "dim") + pad + paint("^", _STYLES[finding.severity]),
    ]


def _cut(line: str, at: int) -> tuple[str, int]:
    """A line, or the part of it around a place, and how many characters are left out before."""
    if len(line) <= WIDTH:
        return line, 0
    start = max(min(at - WIDTH // 2, len(line) - WIDTH), 0)
    shown = line[start : start + WIDTH]
    if start:
        shown = f"…{shown[1:]}"
    if start + WIDTH < len(line):
        shown = f"{shown[:-1]}…"
    return shown, start


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def printable(text: str) -> str:
    """The text without characters that would steer a terminal."""
    return "".join(
        character
        if character == "\t" or not unicodedata.category(character).startswith("C")
        else "\ufffd"
        for character in text
    )


def _summary(report: Report, paint: Paint) -> str:
    errors, advice = report.count(Severity.ERROR), report.count(Severity.ADVICE)
    files = _number(len(report.files), "file")
    if not errors and not advice:
        counted = paint("clean", "bold green") + f": {files} checked"
    else:
        parts = [_number(errors, "error")] if errors else []
        parts += [f"{advice} advice"] if advice else []
        style = _STYLES[Severity.ERROR if errors else Severity.ADVICE]
        counted = f"{paint(', '.join(parts), style)} in {files}"
    if report.suppressed:
        counted += f" ({report.suppressed} suppressed)"
    notes = [
        f"{printable(file)}: memory and plan were not judged until the errors above are repaired"
        for file in report.unplanned
    ]
    return "\n".join([*notes, counted])


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
