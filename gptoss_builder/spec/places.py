"""Where each field stands in the text, and how it was written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from yaml.events import CollectionStartEvent, ScalarEvent

from gptoss_builder.findings import FieldPath, Position
from gptoss_builder.spec.given import Given
from gptoss_builder.spec.parsed import Place
from gptoss_builder.spec.yaml_errors import lines_of, place_of

MAX_LINE = 1000
"""Characters of a line that a finding carries."""


class Places:
    """Positions of a text's fields; a mapping has none."""

    def __init__(self, text: str, places: Mapping[FieldPath, Place]) -> None:
        self._text = text
        self._places = places

    @cached_property
    def _lines(self) -> list[str]:
        return lines_of(self._text)

    def find(self, path: FieldPath, *, at_key: bool = False) -> Position | None:
        """Give where a field's value (or key) starts, or else the nearest section around it.

        A section or list that is spread over lines starts at its key, as an editor sees it.
        """
        place, exact = self._places.get(path), True
        while place is None and path:
            path, exact = path[:-1], False
            place = self._places.get(path)
        if place is None:
            return Position(1, 1) if self._text else None
        value = place.value
        inline = bool(value.flow_style) if isinstance(value, CollectionStartEvent) else True
        empty = isinstance(value, ScalarEvent) and value.value == "" and value.implicit[0]
        at_value = exact and inline and not at_key and not empty
        return place_of((value if at_value or place.key is None else place.key).start_mark)

    def line(self, position: Position) -> str:
        """Give the text of a line, cut where it is too long to print."""
        index = position.line - 1
        return self._lines[index][:MAX_LINE] if index < len(self._lines) else ""

    def given(self, path: FieldPath, value: Any) -> Given:
        """Give a value with the way that it was written."""
        place = self._places.get(path)
        if place is None or not isinstance(place.value, ScalarEvent):
            return Given(value)
        start, end = place_of(place.value.start_mark), place_of(place.value.end_mark)
        if start.line != end.line:
            return Given(value)
        written = self.line(start)[start.column - 1 : end.column - 1]
        return Given(value, written or None, bool(place.value.implicit[0]))
