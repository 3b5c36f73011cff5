"""Plain values to a Spec: what the schema refuses becomes faults, and filler takes its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from gptoss_builder.findings import FieldPath, Position
from gptoss_builder.spec import wording
from gptoss_builder.spec.fields import ITEM, SpecField, fields, find, pattern_of
from gptoss_builder.spec.filler import fill, value_at
from gptoss_builder.spec.parsed import Parsed
from gptoss_builder.spec.places import Places
from gptoss_builder.spec.problems import Fault
from gptoss_builder.spec.schema import Spec
from gptoss_builder.spec.suggest import suggest

MAX_WORDED = 101
"""Faults of a kind that are put into words: looking for near names takes time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the schema says."""

    spec: Spec | None
    """The spec, with filler at `invalid`."""
    invalid: frozenset[FieldPath] = frozenset()
    faults: tuple[Fault, ...] = ()


class _Refusals(NamedTuple):
    """Paths that the schema refuses, by how."""

    unknown: tuple[FieldPath, ...]
    missing: tuple[FieldPath, ...]
    wrong: tuple[FieldPath, ...]


def judge(parsed: Parsed, places: Places) -> Verdict:
    """Validate a document whose root is a mapping."""
    doubtful = parsed.unreadable | {path for path in parsed.empty if find(path) is not None}
    try:
        spec = Spec.model_validate(parsed.value)
        if not doubtful:
            return Verdict(spec)
        refusals = _Refusals((), (), ())
    except ValidationError as error:
        refusals = _refusals(error)
    bad = {*doubtful, *refusals.missing, *refusals.wrong}
    filled = _filled(parsed.value, bad, refusals.unknown)
    faults, renamed = _worded(parsed, places, refusals, doubtful)
    return Verdict(filled, frozenset({*bad, *renamed}), tuple(faults))


def _refusals(error: ValidationError) -> _Refusals:
    kinds: dict[str, dict[FieldPath, None]] = {"extra_forbidden": {}, "missing": {}, "": {}}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        path = _path(detail["loc"])
        kind = detail["type"] if detail["type"] in kinds else ""
        if kind == "missing" and isinstance(path[-1], int):
            kind, path = "", path[:-1]  # an item too few: the list has a wrong length
        kinds[kind][path] = None
    # A list whose item is refused also counts as too short.
    parents = {path[:depth] for path in kinds[""] for depth in range(len(path))}
    return _Refusals(
        tuple(kinds["extra_forbidden"]),
        tuple(kinds["missing"]),
        tuple(path for path in kinds[""] if path not in parents),
    )


def _path(location: tuple[int | str, ...]) -> FieldPath:
    """Take out the tag that pydantic puts behind a field of two kinds."""
    return location[:1] + location[2:] if location[0] == "kernel" else location


def _filled(
    data: dict[str, Any], bad: Iterable[FieldPath], strange: Iterable[FieldPath]
) -> Spec | None:
    """Make a legal spec; None if that is refused as well, and then the findings stand alone."""
    try:
        return Spec.model_validate(fill(data, tuple(bad), tuple(strange)))
    except ValidationError:
        return None


def _worded(
    parsed: Parsed, places: Places, refusals: _Refusals, doubtful: set[FieldPath]
) -> tuple[list[Fault], set[FieldPath]]:
    """Give the faults, and the fields that unknown keys were meant to be."""

    def told(paths: Iterable[FieldPath]) -> list[FieldPath]:
        unsaid = [path for path in paths if not _within(path, doubtful)]
        return sorted(unsaid, key=lambda path: places.find(path) or Position(0, 0))[:MAX_WORDED]

    faults: list[Fault] = []
    meant: set[FieldPath] = set()
    for path in told(refusals.unknown):
        suggestion = suggest(path)
        taken = False
        if suggestion is not None:
            section, best = path[:-1], suggestion.patterns[0]
            here = best[:-1] == pattern_of(section)
            target: FieldPath = (*section, best[-1]) if here else best
            taken = target in meant or (here and best[-1] in value_at(parsed.value, section))
            meant.add(target)
        faults.append(wording.unknown(path, suggestion, taken=taken))
    faults += [wording.missing(path) for path in told(refusals.missing) if path not in meant]
    for path in told(refusals.wrong):
        given = places.given(path, value_at(parsed.value, path))
        faults.append(wording.wrong(path, given, _field(path)))
    for path in sorted(parsed.empty & doubtful - parsed.unreadable, key=str)[:MAX_WORDED]:
        faults.append(wording.empty(path, _field(path)))
    return faults, {path for path in meant if ITEM not in path}


def _field(path: FieldPath) -> SpecField:
    return fields()[pattern_of(path)]


def _within(path: FieldPath, others: set[FieldPath]) -> bool:
    return any(path[:depth] in others for depth in range(len(path) + 1))
