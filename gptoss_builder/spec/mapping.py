"""A spec that is given as a mapping: the same values that a file would give, without places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gptoss_builder.findings import FieldPath, dotted
from gptoss_builder.spec import problems
from gptoss_builder.spec.parsed import MAX_DEPTH, MAX_VALUES, Parsed
from gptoss_builder.spec.problems import Fault


class _StopReading(Exception):  # noqa: N818 (not an error: the fault is recorded already)
    """The mapping is too large or contains itself."""


def from_mapping(mapping: Mapping[Any, Any]) -> Parsed:
    """Copy a mapping into dicts and lists; other values stay as they are, for the schema."""
    parsed = Parsed()
    try:
        parsed.value = _Copier(parsed).copy(mapping, ())
        parsed.complete = True
    except _StopReading:
        pass
    return parsed


class _Copier:
    def __init__(self, parsed: Parsed) -> None:
        self.parsed = parsed
        self.values = 0

    def copy(self, value: Any, path: FieldPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or len(path) > MAX_DEPTH:
            message = "the mapping is nested too deep, has too many values, or contains itself"
            self.parsed.faults.append(Fault(problems.TOO_LARGE, message, "shorten it", path[:4]))
            raise _StopReading
        if isinstance(value, Mapping):
            return {
                key: self.copy(item, (*path, key))
                for key, item in value.items()
                if self._is_text(key, path)
            }
        if isinstance(value, (list, tuple)):
            return [self.copy(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _is_text(self, key: object, path: FieldPath) -> bool:
        if isinstance(key, str):
            return True
        section = dotted(path) or "the outermost level"
        message = f"{section} has a key that is no text but a Python {type(key).__name__}"
        self.parsed.faults.append(Fault(problems.KEY, message, "write a field's name", path))
        return False
