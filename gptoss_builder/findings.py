"""A finding: what is wrong, where, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

FieldPath = tuple[str | int, ...]
"""The way to a field of a spec: `("model", "moe", "top_k")`."""


class Severity(StrEnum):
    """An error fails a check; advice warns, and can be suppressed in the spec."""

    ERROR = "error"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text file: line and column count from 1, the column in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Edit:
    """A repair that needs no decision: at the finding's position, `new` in place of `old`."""

    old: str
    """What stands there now, on one line."""
    new: str
    """What belongs there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, printed as `specs/x.yaml:14:5: message; fix [CODE]`."""

    code: str
    """The rule's code, such as `MO001`."""
    message: str
    """What is wrong, with the values that make it so."""
    fix: str
    """What the user can do; empty only where there is nothing to choose."""
    file: str = ""
    """The file as the user named it; empty for a spec given as a mapping."""
    field: str = ""
    """The field in dots, `model.moe.top_k`; empty for a finding about the whole file."""
    position: Position | None = None
    """Where in the file; None for a spec given as a mapping."""
    source: str = ""
    """The text of the line at `position`, without its line end."""
    severity: Severity = Severity.ERROR
    edit: Edit | None = None
    """The repair, where there is exactly one."""

    def __str__(self) -> str:
        where = self.file
        if self.position is not None:
            where += f":{self.position.line}:{self.position.column}"
        head = f"{where}: " if where else ""
        tail = f"; {self.fix}" if self.fix else ""
        return f"{head}{self.message}{tail} [{self.code}]"


def dotted(path: FieldPath) -> str:
    """Write a field path with dots: `("a", "b", 0)` is `a.b[0]`.

    Keys from outside can hold anything: long ones are shortened and what does not print is
    escaped.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{printable(part)}" if text else printable(part)
    return text


def printable(text: str, limit: int = 60) -> str:
    """Shorten a text from outside, and escape what could upset a terminal."""
    if len(text) <= limit and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def leaves(values: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted path and value of everything in nested mappings that is no mapping itself.

    >>> list(leaves({"moe": {"top_k": 2}, "layers": [1]}))
    [('moe.top_k', 2), ('layers', [1])]
    """
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, values
