"""What was read, from YAML or from a mapping, before the schema judges it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from yaml.events import NodeEvent, ScalarEvent

from gptoss_builder.findings import FieldPath
from gptoss_builder.spec.problems import Fault

MAX_DEPTH = 32
"""Levels of nesting, several times the schema's own."""
MAX_VALUES = 10_000
"""Keys and values of one file."""


@dataclass(slots=True)
class Place:
    """The events of a field's key (None for an item of a list) and of its value."""

    key: ScalarEvent | None
    value: NodeEvent


@dataclass(slots=True)
class Parsed:
    """What a text holds."""

    value: Any = None
    """Plain values."""
    complete: bool = False
    """Whether a whole document was read; `value` is a part of one otherwise."""
    places: dict[FieldPath, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unreadable: set[FieldPath] = field(default_factory=set)
    """Fields whose value is not to be judged (alias, tag, one of several); a fault says why."""
    empty: set[FieldPath] = field(default_factory=set)
    """Fields with nothing after the colon; their value here is None."""
