"""What is wrong with text that is not YAML, in the words of somebody who edits a spec.

libyaml and PyYAML name the grammar rule that failed; both are turned here into the mistake
that most often is behind it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from gptoss_builder.findings import Position, printable
from gptoss_builder.spec.problems import BROKEN, TOO_LARGE, Fault


class _Advice(NamedTuple):
    """A mistake, told from the parser's problem."""

    pattern: str
    """Searched in the parser's context and problem."""
    message: str
    fix: str
    at_start: bool = False
    """Whether the mistake is where the parser's context starts, such as an opening quote."""
    code: str = BROKEN


_ADVICE = (
    _Advice(
        "maximum nesting depth",
        "values are nested too deep",
        "close the brackets or indent less",
        code=TOO_LARGE,
    ),
    _Advice(
        "could not find expected ':'",
        "this line has no colon after its key",
        "write `key: value`, with a space after the colon",
        at_start=True,
    ),
    _Advice(
        "quoted scalar.*unexpected (end of stream|document separator)",
        "the quote that opens here is not closed",
        "close it on the same line",
        at_start=True,
    ),
    _Advice(
        "directive|incompatible YAML",
        "a line that starts with `%` is not a field",
        "remove it",
    ),
    _Advice(
        "undefined tag handle|(parsing|scanning) a tag",
        "a value cannot start with `!`",
        "put it in quotes",
    ),
    _Advice(
        "escape|hexa?decimal",
        "a backslash in double quotes starts an escape, and this is none",
        "use single quotes, or write the backslash twice",
    ),
    _Advice(
        "flow sequence.*expected ',' or ']'",
        "the list that opens here is not closed, or a comma is missing in it",
        "close it with `]`, and put commas between its items",
        at_start=True,
    ),
    _Advice(
        "flow mapping.*expected ',' or '}'",
        "the brace that opens here is not closed, or a comma is missing after it",
        "close it with `}`, and put commas between its fields",
        at_start=True,
    ),
    _Advice(
        "expected '-' indicator|block collection.*expected <block end>",
        "this line is no item of the list above it",
        "start it with `- `, or indent it as the list's key is",
    ),
    _Advice(
        "block mapping.*expected (<block end>|key)",
        "this does not continue the lines above",
        "indent it as its neighbours are; put text that has quotes inside it in quotes",
    ),
    _Advice(
        "sequence entries are not allowed",
        "a list cannot start on the line of its key",
        "write it as `[a, b]`, or start it on the next line",
    ),
    _Advice(
        "expected (the )?node content",
        "a value is missing here",
        "write it, or remove the comma or bracket that is too many",
    ),
    _Advice(
        "alphabetic or numeric character|scanning an? (alias|anchor)",
        "a value cannot start with `*` or `&`",
        "put it in quotes",
        at_start=True,
    ),
    _Advice("block scalar", "nothing can follow `|` or `>`", "put the value in quotes"),
    _Advice(
        "expected '?<document start>",
        "this does not continue the lines above",
        "remove it, or put it in the mapping above",
    ),
)


def explain(error: yaml.MarkedYAMLError, text: str) -> Fault:
    """Turn a parser's error into a fault at the place of the mistake."""
    position = place_of(error.problem_mark or error.context_mark)
    lines = lines_of(text)
    if position.line > len(lines):
        position = Position(len(lines), len(lines[-1]) + 1)
    line = lines[position.line - 1]
    if re.match("[ ]*\t", line):
        column = line.index("\t") + 1
        message, fix = "a tab indents this line", "indent with spaces"
        return Fault(BROKEN, message, fix, position=Position(position.line, column))
    for number, other in enumerate(lines, start=1):
        if other.startswith(("<<<<<<< ", ">>>>>>> ")):
            message, fix = "a merge conflict is left here", "resolve it"
            return Fault(BROKEN, message, fix, position=Position(number, 1))
    if "mapping values are not allowed" in str(error.problem):
        return _unexpected_colon(line, position)
    if "cannot start any token" in str(error.problem):
        character = line[position.column - 1 : position.column]
        if character == "\t":
            message, fix = "a tab stands here", "write spaces"
        else:
            message, fix = f"a value cannot start with `{character}`", "put it in quotes"
        return Fault(BROKEN, message, fix, position=position)
    return _advise(error, position)


def place_of(mark: Any) -> Position:
    """Give the position of a mark of either parser; an error may come without one."""
    return Position(mark.line + 1, mark.column + 1) if mark is not None else Position(1, 1)


def lines_of(text: str) -> list[str]:
    """Split as editors and YAML do; `str.splitlines` breaks at more characters."""
    return re.split("\r\n|\n|\r", text)


def _unexpected_colon(line: str, position: Position) -> Fault:
    before = line[: position.column - 1]
    if re.search(r":\s", before) or "{" in before or "[" in before:
        message = "a second `: ` stands in one value"
        fix = "put the value in quotes if the colon belongs to it, else start a new line"
    else:
        message = "this line continues the value of the line above, and cannot be a field"
        fix = "indent it as its neighbours are, or give the line above its colon"
    return Fault(BROKEN, message, fix, position=position)


def _advise(error: yaml.MarkedYAMLError, position: Position) -> Fault:
    problem = f"{error.context or ''} {error.problem or ''}"
    for advice in _ADVICE:
        if re.search(advice.pattern, problem):
            if advice.at_start:
                position = place_of(error.context_mark)
            return Fault(advice.code, advice.message, advice.fix, position=position)
    message = f"this is not YAML: {printable(error.problem or 'it cannot be read', 200)}"
    return Fault(BROKEN, message, "put text with special characters in quotes", position=position)
