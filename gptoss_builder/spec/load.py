"""A spec from a file, a text or a mapping: every fault found at once, each with its place.

`read_document` is for checkers, which want all that can be known about a bad spec;
`load_spec` is for everybody else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gptoss_builder.errors import SpecError
from gptoss_builder.findings import FieldPath, Finding, Position, Severity, dotted
from gptoss_builder.spec import problems
from gptoss_builder.spec.judge import judge
from gptoss_builder.spec.mapping import from_mapping
from gptoss_builder.spec.parsed import Parsed
from gptoss_builder.spec.places import Places
from gptoss_builder.spec.problems import Fault
from gptoss_builder.spec.schema import Spec
from gptoss_builder.spec.text_file import decode, read_bytes
from gptoss_builder.spec.yaml_text import parse

MAX_FINDINGS = 100
"""Findings of one file; the rest is left out."""


@dataclass(frozen=True)
class Document:
    """All that can be known about one spec, good or bad."""

    file: str
    """As the user named it; empty for a mapping, `<stdin>` for standard input."""
    directory: Path
    """Where relative data paths start."""
    text: str = field(repr=False)
    """The file's text; empty for a mapping."""
    data: Mapping[str, Any] | None = field(repr=False)
    """Plain values; None where the YAML is broken or its root is no mapping."""
    spec: Spec | None
    """The spec, when nothing is wrong with it."""
    partial: Spec | None = field(repr=False)
    """The spec with filler in its `invalid` fields; the same as `spec` where that is given."""
    invalid: frozenset[FieldPath]
    """Fields of `partial` that hold filler, or that an unknown key may have been meant for."""
    findings: tuple[Finding, ...]
    """What the loader found, in the order of the file."""
    places: Places = field(repr=False, compare=False)
    """Where each field stands."""

    def valid(self, path: FieldPath) -> bool:
        """Say whether `partial` holds the user's own values at a path and beneath it."""
        return not any(path[: len(bad)] == bad or bad[: len(path)] == path for bad in self.invalid)

    def finding(
        self,
        code: str,
        path: FieldPath,
        message: str,
        fix: str,
        severity: Severity = Severity.ERROR,
    ) -> Finding:
        """Make a finding at a field's value, or at the nearest section that exists."""
        located = _locate(Fault(code, message, fix, path), self.file, self.places)
        return replace(located, severity=severity)


def read_document(
    source: str | os.PathLike[str] | Mapping[str, Any], *, text: str | bytes | None = None
) -> Document:
    """Read a spec and everything that is wrong with it.

    Args:
        source: a path, or a mapping. With `text`, only the name to show and the place that
            relative data paths start from.
        text: YAML text, or its bytes, in place of the file's.

    Raises:
        InputError: the path is not there or cannot be read. Bad content never raises.
    """
    if isinstance(source, Mapping):
        return _document("", Path(), "", from_mapping(source))
    file = os.fspath(source)
    content = read_bytes(Path(file)) if text is None else text
    decoded, fault = decode(content)
    parsed = parse(decoded) if fault is None else Parsed(faults=[fault])
    return _document(file, Path(file).parent, decoded, parsed)


def load_spec(source: str | os.PathLike[str] | Mapping[str, Any]) -> Spec:
    """Load a spec from a path, a mapping, or YAML text (a string of more than one line).

    Raises:
        InputError: the path is not there or cannot be read.
        SpecError: the spec has faults; all of them are in `findings`.
    """
    if isinstance(source, str) and "\n" in source:
        document = read_document("<text>", text=source)
    else:
        document = read_document(source)
    if document.spec is None:
        raise SpecError(document.findings)
    return document.spec


def _document(file: str, directory: Path, text: str, parsed: Parsed) -> Document:
    places = Places(text, parsed.places)
    faults = list(parsed.faults)
    data: dict[str, Any] | None = None
    spec: Spec | None = None
    invalid: frozenset[FieldPath] = frozenset()
    if parsed.complete and isinstance(parsed.value, dict):
        data = parsed.value
        verdict = judge(parsed, places)
        faults += verdict.faults
        spec, invalid = verdict.spec, verdict.invalid
    elif parsed.complete and not faults:
        faults.append(_not_a_mapping(parsed.value))
    findings = _in_order(faults, file, places)
    return Document(
        file=file,
        directory=directory,
        text=text,
        data=data,
        spec=spec if not findings else None,
        partial=spec,
        invalid=invalid,
        findings=findings,
        places=places,
    )


def _not_a_mapping(value: object) -> Fault:
    if value is None:
        message, fix = "the file holds no spec", "write one; `spec: 1` is its first line"
        return Fault(problems.EMPTY_FILE, message, fix)
    what = "a list" if isinstance(value, list) else "one value"
    message, fix = f"the outermost level is {what}", "write `key: value` lines"
    return Fault(problems.ROOT, message, fix)


def _in_order(faults: Iterable[Fault], file: str, places: Places) -> tuple[Finding, ...]:
    """Locate faults and sort them as the file has them; a mapping's stay as they come."""
    findings = sorted(
        (_locate(fault, file, places) for fault in faults),
        key=lambda finding: finding.position or Position(0, 0),
    )
    if len(findings) <= MAX_FINDINGS:
        return tuple(findings)
    message = f"there are more than {MAX_FINDINGS} faults"
    more = Finding(problems.TOO_LARGE, message, f"repair the first {MAX_FINDINGS}", file)
    return (*findings[:MAX_FINDINGS], more)


def _locate(fault: Fault, file: str, places: Places) -> Finding:
    position = fault.position or places.find(fault.path, at_key=fault.at_key)
    return Finding(
        code=fault.code,
        message=fault.message,
        fix=fault.fix,
        file=file,
        field=dotted(fault.path),
        position=position,
        source=places.line(position) if position else "",
        edit=fault.edit,
    )
