"""YAML text to plain values, with the place of every field.

Parser events are read one by one into dicts and lists: that gives positions, sees
duplicate keys, and stops at a limit before anything grows. Tags, anchors and aliases are
reported and never resolved. libyaml is used where PyYAML was built with it; the pure
Python parser gives the same values and places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from gptoss_builder.findings import FieldPath, Position, dotted
from gptoss_builder.spec import problems
from gptoss_builder.spec.parsed import MAX_DEPTH, MAX_VALUES, Parsed, Place
from gptoss_builder.spec.problems import Fault
from gptoss_builder.spec.scalars import read_plain, same_key
from gptoss_builder.spec.yaml_errors import explain, lines_of, place_of

PARSERS: tuple[Any, ...] = (getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader)
"""The fast parser, where there is one, and the pure Python one."""

_NOT_TEXT = re.compile(
    "[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read."""

    value: dict[str, Any] | list[Any]
    path: FieldPath
    dropped: bool
    """Whether its values go nowhere: under the second of two duplicates, or a merge key."""
    keys: dict[object, ScalarEvent] = field(default_factory=dict)
    key: ScalarEvent | None = None
    drop_next: bool = False


class _StopReading(Exception):  # noqa: N818 (not an error: the fault is recorded already)
    """The rest of the text cannot be given a meaning."""


def parse(text: str, parser: Any = PARSERS[0]) -> Parsed:
    """Read one YAML document; never raises for bad text."""
    reader = _Reader()
    bad = _NOT_TEXT.search(text)
    if bad is not None:
        reader.parsed.faults.append(_bad_character(text, bad.start()))
        return reader.parsed
    try:
        for event in _events(text, parser):
            reader.take(event)
        reader.parsed.complete = True
    except yaml.MarkedYAMLError as error:
        reader.parsed.faults.append(explain(error, text))
    except _StopReading:
        pass
    return reader.parsed


def _events(text: str, parser: Any) -> Iterator[Event]:
    loader = parser(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    except (ValueError, OverflowError) as error:
        # The pure Python parser hands escapes and version numbers to chr() and int() unchecked.
        raise yaml.MarkedYAMLError(
            "while scanning a double-quoted scalar", None, f"escape: {error}", loader.get_mark()
        ) from None
    finally:
        loader.dispose()


class _Reader:
    """Builds values from events, with an explicit stack: nesting costs no recursion."""

    def __init__(self) -> None:
        self.parsed = Parsed()
        self.stack: list[_Open] = []
        self.documents = 0
        self.values = 0

    def take(self, event: Event) -> None:
        if isinstance(event, CollectionEndEvent):
            self.stack.pop()
        elif isinstance(event, NodeEvent):
            self._count(event)
            top = self.stack[-1] if self.stack else None
            if top is not None and isinstance(top.value, dict) and top.key is None:
                self._take_key(top, event)
            else:
                self._take_value(top, event)
        elif isinstance(event, DocumentStartEvent):
            self._take_document(event)

    def _take_document(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            self.parsed.complete = True
            self._stop(
                problems.DOCUMENTS,
                "a second document starts here, and a spec is one document",
                "remove the `---` line, or put the second document in a file of its own",
                event,
            )

    def _count(self, event: NodeEvent) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            message = f"there are more than {MAX_VALUES} keys and values"
            self._stop(problems.TOO_LARGE, message, "shorten the file", event)
        if isinstance(event, CollectionStartEvent) and len(self.stack) >= MAX_DEPTH:
            message = f"values are nested deeper than {MAX_DEPTH} levels"
            self._stop(problems.TOO_LARGE, message, "close the brackets or indent less", event)

    def _take_key(self, top: _Open, event: NodeEvent) -> None:
        if not isinstance(event, ScalarEvent):
            what = f"the alias `*{event.anchor}`" if isinstance(event, AliasEvent) else None
            what = what or ("a mapping" if isinstance(event, MappingStartEvent) else "a list")
            fix = "write a field's name; a template such as `{{ x }}` must be filled in first"
            self._stop(problems.KEY, f"{what} is used as a key", fix, event)
        top.key = event
        top.drop_next = top.dropped
        if top.dropped:
            return
        if event.value == "<<" and event.implicit[0]:
            message = f"{_section(top.path)} has a merge key, `<<`"
            self._fault(problems.ALIAS, message, "write the fields out", event, top.path)
            top.drop_next = True
        elif event.value == "":
            message = f"{_section(top.path)} has an empty key"
            fix = "write the field's name before the colon"
            self._fault(problems.KEY, message, fix, event, top.path)
            top.drop_next = True
        else:
            self._refuse_decoration(event, (*top.path, event.value))
            self._refuse_duplicate(top, event)

    def _refuse_duplicate(self, top: _Open, event: ScalarEvent) -> None:
        identity = same_key(event.value) if event.implicit[0] else ("text", event.value)
        first = top.keys.setdefault(identity, event)
        if first is event:
            return
        path = (*top.path, event.value)
        lines = f"lines {place_of(first.start_mark).line} and {place_of(event.start_mark).line}"
        message = f"{dotted(path)} is given twice, on {lines}"
        if first.value != event.value:
            message = f"`{first.value}` and `{event.value}`, on {lines}, can be read as one key"
        self._fault(problems.DUPLICATE, message, "keep one of them", event, path)
        self.parsed.unreadable.add((*top.path, first.value))
        top.drop_next = True

    def _take_value(self, top: _Open | None, event: NodeEvent) -> None:
        path, dropped = self._enter(top, event)
        value: Any = None
        if isinstance(event, CollectionStartEvent):
            value = {} if isinstance(event, MappingStartEvent) else []
            self.stack.append(_Open(value, path, dropped))
        elif isinstance(event, ScalarEvent):
            value = read_plain(event.value) if event.implicit[0] else event.value
        if dropped:
            return
        self._refuse_decoration(event, path)
        if value is None and isinstance(event, ScalarEvent) and event.value == "":
            self.parsed.empty.add(path)
        if top is None:
            self.parsed.value = value
        elif isinstance(top.value, dict):
            top.value[str(path[-1])] = value
        else:
            top.value.append(value)

    def _enter(self, top: _Open | None, event: NodeEvent) -> tuple[FieldPath, bool]:
        """Give the path of the value that begins, and whether it goes nowhere."""
        if top is None:
            return (), False
        if isinstance(top.value, list):
            path: FieldPath = (*top.path, len(top.value))
            key, dropped = None, top.dropped
        else:
            key, top.key = top.key, None
            path = (*top.path, key.value if key is not None else "")
            dropped = top.drop_next
        if not dropped:
            self.parsed.places[path] = Place(key, event)
        return path, dropped

    def _refuse_decoration(self, event: NodeEvent, path: FieldPath) -> None:
        if isinstance(event, AliasEvent):
            message, fix = f"{_value(path)} is the alias `*{event.anchor}`", "write the value out"
            self._fault(problems.ALIAS, message, fix, event, path)
            self.parsed.unreadable.add(path)
            return
        if event.anchor is not None:
            message = f"{_value(path)} has the anchor `&{event.anchor}`"
            self._fault(problems.ALIAS, message, f"remove `&{event.anchor}`", event, path)
        if isinstance(event, (ScalarEvent, CollectionStartEvent)) and event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            message, fix = (
                f"{_value(path)} has the tag `{tag}`",
                "remove it and write a plain value",
            )
            self._fault(problems.TAG, message, fix, event, path)
            self.parsed.unreadable.add(path)

    def _fault(self, code: str, message: str, fix: str, event: Event, path: FieldPath = ()) -> None:
        position = place_of(event.start_mark)
        self.parsed.faults.append(Fault(code, message, fix, path, position=position))

    def _stop(self, code: str, message: str, fix: str, event: Event) -> NoReturn:
        self._fault(code, message, fix, event)
        raise _StopReading


def _section(path: FieldPath) -> str:
    return dotted(path) or "the outermost level"


def _value(path: FieldPath) -> str:
    return dotted(path) or "the spec"


def _bad_character(text: str, index: int) -> Fault:
    lines = lines_of(text[:index])
    what = f"the character U+{ord(text[index]):04X} stands here"
    if text[index] == "\x00":
        what = "a NUL character (U+0000) stands here"
    position = Position(len(lines), len(lines[-1]) + 1)
    return Fault(problems.CHARACTER, what, "delete it", position=position)
