"""Every field of the spec as a flat table, read off the schema's own JSON Schema.

Messages, suggestions, the reference page and the fillers' test all read this table, so that
a range or a choice is written once, in `schema.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from gptoss_builder.findings import FieldPath
from gptoss_builder.spec.schema import Spec

ITEM = "[]"
"""Stands in a pattern for the index of a list's item."""

Pattern = tuple[str, ...]
"""A field path with `ITEM` in place of every index: `("suppress", "[]", "rule")`."""

Kind = Literal["section", "list", "integer", "number", "boolean", "choice", "text"]

_KINDS: dict[str, Kind] = {
    "object": "section",
    "array": "list",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "string": "text",
}
FORMS = {
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": "letters, digits, `_`, `-` and `.`, the first not `-` or `.`",
    r"^[A-Z]{2}[0-9]{3}$": "a rule's code: two capitals and three digits, such as `CK002`",
    r"^[^\x00]+$": "text",
}
"""What each regular expression of the schema asks for."""

_UNTOLD = 1e9
"""Upper bounds above this only keep out the absurd, and are told when they are broken."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, or of a length; None is unbounded."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def told(self, untold: float = _UNTOLD) -> str:
        """Say it: `from 1 to 8192`, `above 0`, `of at least 0 and below 1`; empty if unbounded."""
        low = None if self.low is None else f"{self.low:.15g}"
        high = None if self.high is None or self.high > untold else f"{self.high:.15g}"
        if low and high and not (self.low_open or self.high_open):
            return f"from {low} to {high}"
        parts = []
        if low:
            parts.append(f"above {low}" if self.low_open else f"of at least {low}")
        if high:
            parts.append(f"below {high}" if self.high_open else f"at most {high}")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class SpecField:
    """One field: what it takes and what it means."""

    pattern: Pattern
    kind: Kind
    doc: str = ""
    required: bool = False
    default: Any = None
    nullable: bool = False
    range: Range = Range()
    """Of a number; of the length of a list or text."""
    choices: tuple[Any, ...] = ()
    """Of a choice; of a section, the words that may stand in its place."""
    form: str = ""
    """Regular expression of a text."""
    names: tuple[str, ...] = ()
    """Fields of a section, in the schema's order."""
    needs: tuple[str, ...] = ()
    """Fields of a section that have no default."""

    def told(self) -> str:
        """Say what the field takes, for a message: `a whole number from 1 to 8192`."""
        return _TOLD[self.kind](self)


@lru_cache(maxsize=1)
def fields() -> Mapping[Pattern, SpecField]:
    """Give every field by its pattern, sections before what is in them; `()` is the spec."""
    schema = Spec.model_json_schema()
    return {field.pattern: field for field in _walk((), schema, schema["$defs"])}


def find(path: FieldPath) -> SpecField | None:
    """Give the field at a path, or None where the spec has none."""
    return fields().get(pattern_of(path))


def pattern_of(path: FieldPath) -> Pattern:
    """Put `ITEM` in place of every index."""
    return tuple(ITEM if isinstance(part, int) else part for part in path)


def _walk(pattern: Pattern, node: dict[str, Any], defs: dict[str, Any]) -> Iterator[SpecField]:
    """Yield the field of a JSON Schema node and everything in it."""
    doc, default = node.get("description", ""), node.get("default")
    branches = [_resolve(branch, defs) for branch in node.get("anyOf") or node.get("oneOf") or ()]
    words = tuple(branch["const"] for branch in branches if "const" in branch)
    nullable = any(branch.get("type") == "null" for branch in branches)
    for branch in branches:
        if "const" not in branch and branch.get("type") != "null":
            node = {**branch, "description": doc or branch.get("description", "")}
    own = _resolve(node, defs)
    field = _field(pattern, own)
    yield replace(
        field,
        doc=doc or own.get("description", ""),
        default=default,
        nullable=nullable,
        choices=field.choices or words,
    )
    needs = own.get("required", ())
    for name, child in own.get("properties", {}).items():
        first, *rest = _walk((*pattern, name), child, defs)
        yield replace(first, required=name in needs)
        yield from rest
    item = own.get("items") or next(iter(own.get("prefixItems", ())), None)
    if item:
        yield from _walk((*pattern, ITEM), item, defs)


def _resolve(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    return {**defs[node["$ref"].rsplit("/", 1)[1]], **node}


def _field(pattern: Pattern, node: dict[str, Any]) -> SpecField:
    choices = tuple(node.get("enum", ())) or ((node["const"],) if "const" in node else ())
    low, high = node.get("minimum"), node.get("maximum")
    return SpecField(
        pattern,
        "choice" if choices else _KINDS[node["type"]],
        range=Range(
            next((v for v in (low, *map(node.get, _LEAST)) if v is not None), None),
            next((v for v in (high, *map(node.get, _MOST)) if v is not None), None),
            "exclusiveMinimum" in node,
            "exclusiveMaximum" in node,
        ),
        choices=choices,
        form=node.get("pattern", ""),
        names=tuple(node.get("properties", ())),
        needs=tuple(node.get("required", ())),
    )


_LEAST = ("exclusiveMinimum", "minItems", "minLength")
_MOST = ("exclusiveMaximum", "maxItems", "maxLength")


def either(words: tuple[Any, ...]) -> str:
    """Join choices: `a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def _told_section(field: SpecField) -> str:
    needs = f" with {', '.join(field.needs)}" if field.needs else ""
    return f"{either(field.choices)} or a section{needs}" if field.choices else f"a section{needs}"


def _told_list(field: SpecField) -> str:
    low, high = field.range.low, field.range.high
    item = fields()[(*field.pattern, ITEM)]
    of = f" of {either(item.choices)}" if item.choices else f", each {item.told()}"
    if low is None:
        return f"a list{of}"
    if low == high:
        return f"a list of {low:g} items{of}" if item.choices else f"a list of {low:g}{of}"
    return f"a list{of}, with {low:g} to {high:g} items"


_TOLD: dict[Kind, Callable[[SpecField], str]] = {
    "section": _told_section,
    "list": _told_list,
    "integer": lambda field: f"a whole number {field.range.told()}".rstrip(),
    "number": lambda field: f"a number {field.range.told()}".rstrip(),
    "boolean": lambda field: "`true` or `false`",
    "choice": lambda field: either(field.choices),
    "text": lambda field: FORMS.get(field.form, "text"),
}
