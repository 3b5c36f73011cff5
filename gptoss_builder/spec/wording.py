"""Our words for what the schema refuses: the value, the rule, and what to write.

pydantic decides what is wrong; the message is then made from the value as it was written
and from the field table, so that it reads the same for a file and for a mapping.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from gptoss_builder.findings import Edit, FieldPath, dotted, printable
from gptoss_builder.spec import problems
from gptoss_builder.spec.fields import ITEM, SpecField, either, fields, pattern_of
from gptoss_builder.spec.given import Given
from gptoss_builder.spec.problems import Fault
from gptoss_builder.spec.scalars import lookalike, read_plain, truth_word
from gptoss_builder.spec.schema import HARD_CAP
from gptoss_builder.spec.suggest import Suggestion, is_slip, near_choice

_FP16 = ("fp16", "float16", "half")


def unknown(path: FieldPath, suggestion: Suggestion | None, *, taken: bool) -> Fault:
    """Word an unknown key; `taken` says that the suggested field is there already."""
    key = printable(str(path[-1]))
    section = dotted(path[:-1]) or "the outermost level"
    message = f"{section} has no field `{key}`"
    if suggestion is None:
        names = ", ".join(fields()[pattern_of(path[:-1])].names)
        return Fault(problems.UNKNOWN, message, f"its fields are {names}", path, at_key=True)
    best = suggestion.patterns[0]
    if best[:-1] != pattern_of(path[:-1]):
        homes = tuple(".".join(pattern) for pattern in suggestion.patterns[:3])
        fix = f"write it as {either(homes)}, if that is meant"
        return Fault(problems.UNKNOWN, message, fix, path, at_key=True)
    if taken:
        fix = f"keep one of it and `{best[-1]}`, which is there already"
        return Fault(problems.UNKNOWN, message, fix, path, at_key=True)
    edit = Edit(str(path[-1]), best[-1]) if suggestion.sure else None
    fix = f"write `{best[-1]}`, if that is meant"
    return Fault(problems.UNKNOWN, message, fix, path, at_key=True, edit=edit)


def missing(path: FieldPath) -> Fault:
    """Word a field that has no default and is not there."""
    section, name = dotted(path[:-1]) or "the spec", path[-1]
    field = fields()[pattern_of(path)]
    fix = f"add `{name}`: {field.told()}"
    if len(field.choices) == 1 and field.kind == "choice":
        fix = f"add `{name}: {field.choices[0]}`"
    if path == ("spec",):
        fix += ", or leave the file out with --exclude if it is no spec"
    message = f"{section} has no `{name}` ({field.doc.rstrip('.')})"
    return Fault(problems.MISSING, message, fix, path, at_key=True)


def empty(path: FieldPath, field: SpecField) -> Fault:
    """Word a key with nothing after its colon."""
    if field.kind == "section":
        fix = "write its fields on the lines below, indented"
    else:
        fix = f"write {field.told()}"
    if not field.required and path and isinstance(path[-1], str):
        fix += ", or remove the key"
    return Fault(problems.EMPTY_VALUE, f"{dotted(path)} is empty", fix, path, at_key=True)


def wrong(path: FieldPath, given: Given, field: SpecField) -> Fault:
    """Word a value that the field does not take."""
    judge = {
        "integer": _wrong_number,
        "number": _wrong_number,
        "boolean": _wrong_boolean,
        "choice": _wrong_choice,
        "text": _wrong_text,
        "list": _wrong_list,
        "section": _wrong_section,
    }[field.kind]
    verdict = judge(given, field)
    message = f"{dotted(path) or 'the spec'} is {given.shown()}{verdict.because}"
    edit = Edit(given.written, verdict.new) if given.written and verdict.new else None
    return Fault(verdict.code, message, verdict.fix, path, edit=edit)


class _Verdict(NamedTuple):
    """Why a value is refused."""

    code: str
    because: str
    """The message after the value, from its comma on."""
    fix: str
    new: str = ""
    """What to write in its place, where that needs no decision."""


def _type(field: SpecField, because: str = "") -> _Verdict:
    because = because or f", where {_a_kind(field)} belongs"
    return _Verdict(problems.TYPE, because, f"write {field.told()}")


def _a_kind(field: SpecField) -> str:
    kinds = {"integer": "a whole number", "boolean": "`true` or `false`", "choice": "a word"}
    return kinds.get(field.kind, "text" if field.kind == "text" else f"a {field.kind}")


def _wrong_number(given: Given, field: SpecField) -> _Verdict:
    value = given.value
    if isinstance(value, str):
        return _number_as_text(given, field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _type(field)
    if not _is_finite(value):
        why = "too large" if _has_digits(given) else "not a finite number"
        return _Verdict(problems.FINITE, f", which is {why}", f"write {field.told()}")
    if field.kind == "integer" and isinstance(value, float):
        below = math.floor(value)
        if below == value:
            whole = str(below)
            because = ", which is not written as a whole number"
            return _Verdict(problems.TYPE, because, f"write {whole}", whole)
        near = f"write {below} or {below + 1}"
        return _Verdict(problems.TYPE, ", which is not a whole number", near)
    return _out_of_range(value, field)


def _out_of_range(value: float, field: SpecField) -> _Verdict:
    high = field.range.high
    fix = f"write {field.told()}"
    if field.pattern[-1] in {"d_model", "d_ff"} and high == HARD_CAP and value > HARD_CAP:
        return _Verdict(problems.CAP, f", above the hard cap of {HARD_CAP}", fix)
    if high is not None and value >= high:
        limit = "not below" if field.range.high_open else "above the largest,"
        return _Verdict(problems.RANGE, f", {limit} {high:.15g}", fix)
    limit = "not above" if field.range.low_open else "below the smallest,"
    return _Verdict(problems.RANGE, f", {limit} {field.range.low:.15g}", fix)


def _number_as_text(given: Given, field: SpecField) -> _Verdict:
    text = given.value.strip()
    if isinstance(read_plain(text), (int, float)) and not isinstance(read_plain(text), bool):
        return _Verdict(
            problems.TYPE, ", not a number", f"write {text} as a number, without quotes", text
        )
    found = lookalike(text)
    if found is None:
        return _type(field)
    meant = [word for word in found.meant if _takes(field, read_plain(word))]
    if field.pattern[-1].endswith("_gib") and (
        size := re.fullmatch(r"([0-9]+) ?[gG]i?[bB]?", text)
    ):
        meant = [size[1]]
    if not meant:
        return _Verdict(problems.SPELLING, f", {found.what}", f"write {field.told()}")
    sure = meant[0] if len(found.meant) == 1 and given.plain else ""
    return _Verdict(problems.SPELLING, f", {found.what}", f"write {' or '.join(meant)}", sure)


def _takes(field: SpecField, value: object) -> bool:
    """Whether a number field takes a value: of its kind, and within its bounds."""
    if isinstance(value, bool) or not isinstance(
        value, int if field.kind == "integer" else float | int
    ):
        return False
    low, high = field.range.low, field.range.high
    return (low is None or value >= low) and (high is None or value <= high)


def _wrong_boolean(given: Given, field: SpecField) -> _Verdict:
    word = truth_word(given.value) if isinstance(given.value, str) else None
    if word is None:
        return _type(field)
    because = ", which is text in YAML 1.2" if given.plain else ", not a truth value"
    code = problems.SPELLING if given.plain else problems.TYPE
    return _Verdict(code, because, f"write {word}", word)


def _wrong_choice(given: Given, field: SpecField) -> _Verdict:
    fix = f"write {field.told()}"
    if field.pattern == ("training", "precision") and given.value in _FP16:
        because = ", which needs loss scaling, and there is none"
        return _Verdict(problems.CHOICE, because, fix)
    near = near_choice(given.value, field.choices) if isinstance(given.value, str) else None
    if near is not None and len(field.choices) > 1:
        fix = f"write `{near}`, if that is meant; it can be {field.told()}"
    sure = near if near is not None and is_slip(given.value, near, field.choices) else ""
    return _Verdict(problems.CHOICE, ", which is none of the choices", fix, sure)


def _wrong_text(given: Given, field: SpecField) -> _Verdict:
    value, most = given.value, field.range.high
    if not isinstance(value, str):
        return _no_text(given, field)
    if value == "":
        return _Verdict(problems.TEXT, ", which is empty", f"write {field.told()}")
    if most is not None and len(value) > most:
        because = f", which has {len(value)} characters"
        return _Verdict(problems.TEXT, because, f"write at most {most:g} of them")
    hidden = next((c for c in value if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    if hidden is not None:
        because = f", which has the character U+{ord(hidden):04X}"
        return _Verdict(problems.TEXT, because, "remove it")
    return _Verdict(problems.TEXT, ", which has a wrong form", f"write {field.told()}")


def _no_text(given: Given, field: SpecField) -> _Verdict:
    if given.written and isinstance(given.value, (bool, int, float)):
        quoted = f'"{given.written}"'
        return _Verdict(problems.TYPE, ", not text", f"write {quoted}, in quotes", quoted)
    return _type(field)


def _wrong_list(given: Given, field: SpecField) -> _Verdict:
    if not isinstance(given.value, list):
        sections = fields()[(*field.pattern, ITEM)].kind == "section"
        new = f"[{given.written}]" if given.written and given.plain and not sections else ""
        fix = f"write {field.told()}, such as {new}" if new else f"write {field.told()}"
        return _Verdict(problems.TYPE, ", where a list belongs", fix)
    count = len(given.value)
    because = f" of {count} item{'' if count == 1 else 's'}"
    return _Verdict(problems.LENGTH, because, f"write {field.told()}")


def _wrong_section(given: Given, field: SpecField) -> _Verdict:
    if field.choices and isinstance(given.value, str):
        because = ", which is none of the choices"
        return _Verdict(problems.CHOICE, because, f"write {field.told()}")
    if given.plain and len(field.needs) == 1:
        only = fields()[(*field.pattern, field.needs[0])]
        takes = {"text": str, "integer": int}.get(only.kind)
        if takes is not None and type(given.value) is takes:
            new = f"{{{field.needs[0]}: {given.written}}}"
            return _Verdict(problems.TYPE, ", where a section belongs", f"write {new}", new)
    return _type(field)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _has_digits(given: Given) -> bool:
    return isinstance(given.value, int) or bool(re.search("[0-9]", given.written or ""))
