"""A chart over time as SVG: axes, lines, marks, and panels one below the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH, LEFT, RIGHT = 720, 70, 24
TOP, PLOT, BOTTOM = 64, 150, 40
"""Pixels of a panel above its plot (title and legend), of the plot, and below it (labels)."""
HEIGHT = TOP + PLOT + BOTTOM

Point = tuple[float, float | None]
"""x and y; None leaves a gap in the line."""


class Line(NamedTuple):
    """One line of a panel."""

    name: str
    """In the legend; none if empty."""
    colour: str
    points: Sequence[Point]
    dashes: str = ""
    dots: bool = False
    """A circle at every point as well."""


class Panel(NamedTuple):
    """Lines over one pair of axes."""

    title: str
    lines: Sequence[Line]
    low: float
    """The plot's lower end; the upper end is the highest value, rounded up."""
    x_name: str = ""
    marks: Sequence[tuple[float, str]] = ()
    """Vertical lines with a word each."""
    bands: Sequence[tuple[str, Sequence[tuple[float, float, float]]]] = ()
    """Filled areas: a colour, and x with a lower and an upper value."""


def picture(panels: Sequence[Panel]) -> str:
    """The panels, one below the other, over a common range of x."""
    height = HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    end = max(x for panel in panels for line in panel.lines for x, _ in line.points)
    for number, panel in enumerate(panels):
        parts += _panel(panel, HEIGHT * number, end)
    return "\n".join([*parts, "</svg>\n"])


def steps_of(low: float, high: float) -> list[float]:
    """Four to nine round numbers from `low` up that reach `high`.

    >>> steps_of(0, 17)
    [0, 5, 10, 15, 20]
    """
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * 0.8)
    count = math.ceil((high - low) / unit - 1e-9)
    found = [round(low + unit * n, 10) for n in range(count + 1)]
    return [int(value) if value == int(value) else value for value in found]


def _panel(panel: Panel, offset: int, end: float) -> list[str]:
    values = [y for line in panel.lines for _, y in line.points if y is not None]
    values += [high for _, band in panel.bands for _, _, high in band]
    ticks = steps_of(panel.low, max(values))
    bottom = offset + TOP + PLOT

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / end * (WIDTH - LEFT - RIGHT),
            bottom - (max(y, panel.low) - panel.low) / (ticks[-1] - panel.low) * PLOT,
        )

    parts = [f'<text x="{LEFT}" y="{offset + 20}" font-size="14">{panel.title}</text>']
    for tick in ticks:
        _, y = place(0, tick)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>'
        )
    for tick in steps_of(0, end):
        if tick <= end:
            x, _ = place(tick, panel.low)
            name = f"{tick:,} {panel.x_name}" if tick == 0 else f"{tick:,}"
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{name.strip()}</text>'
            )
    for colour, band in panel.bands:
        upper = [place(x, high) for x, _, high in band]
        lower = [place(x, low) for x, low, _ in reversed(band)]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *lower])
        parts.append(f'<polygon points="{corners}" fill="{colour}" fill-opacity="0.15"/>')
    for at, word in panel.marks:
        x, _ = place(at, panel.low)
        parts.append(
            f'<path d="M{x:.1f} {offset + TOP}V{bottom}" stroke="#555" stroke-dasharray="3 3"/>'
            f'<text x="{x + 5:.1f}" y="{offset + TOP + 12}" fill="#555">{word}</text>'
        )
    legend = LEFT
    for line in panel.lines:
        parts += _line(line, place)
        if line.name:
            dash = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
            parts.append(
                f'<path d="M{legend} {offset + 40}h28" stroke="{line.colour}" stroke-width="2"'
                f'{dash}/><text x="{legend + 36}" y="{offset + 44}">{line.name}</text>'
            )
            legend += 60 + 7 * len(line.name)
    return parts


def _line(line: Line, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append(place(x, y))
    dash = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    parts = [
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in run)}" fill="none" '
        f'stroke="{line.colour}" stroke-width="1.5"{dash}/>'
        for run in runs
        if len(run) > 1
    ]
    if line.dots:
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{line.colour}"/>'
            for run in runs
            for x, y in run
        ]
    return parts
