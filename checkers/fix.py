"""Repairs that leave no choice, each applied only if a second check agrees.

A finding can carry an edit: one word for another at its position. Edits change nothing else
in the text, so comments and layout stay.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from checkers.registry import LOAD_RULES
from gptoss_builder.findings import Finding
from gptoss_builder.spec.yaml_errors import lines_of

LOADER_CODES = frozenset(rule.code for rule in LOAD_RULES)

Check = Callable[[str], tuple[Finding, ...]]
"""Findings of a text."""


@dataclass(frozen=True)
class Repair:
    """A text before and after its repairs."""

    file: str
    before: str
    after: str
    count: int
    """Repairs that were made."""


def repair(file: str, text: str, check: Check) -> Repair:
    """Apply the edits of a text's findings that a second check confirms.

    An edit stays if its finding is gone afterwards and the loader finds nothing new, but for
    the value of a key that it can only now read. What the other rules then say was true before.

    Args:
        file: the name to show.
        text: the text of the file.
        check: gives the findings of a text.
    """
    after, count = text, 0
    findings = check(after)
    tried: set[tuple[str, str]] = set()
    while True:
        candidate = next(
            (f for f in findings if f.edit is not None and (f.code, f.field) not in tried), None
        )
        if candidate is None:
            return Repair(file, text, after, count)
        tried.add((candidate.code, candidate.field))
        edited = _edited(after, candidate)
        if edited is None:
            continue
        found = check(edited)
        if _confirmed(candidate, findings, found):
            after, findings, count = edited, found, count + 1


def _confirmed(candidate: Finding, before: tuple[Finding, ...], after: tuple[Finding, ...]) -> bool:
    old, new = _kinds(before), _kinds(after)
    if new[candidate.code, candidate.field] >= old[candidate.code, candidate.field]:
        return False
    section = candidate.field.rpartition(".")[0]
    repaired = f"{section}.{candidate.edit.new}" if section and candidate.edit else ""
    return not any(
        code in LOADER_CODES and not (repaired and f"{field}.".startswith(f"{repaired}."))
        for code, field in new - old
    )


def _kinds(findings: tuple[Finding, ...]) -> Counter[tuple[str, str]]:
    return Counter((finding.code, finding.field) for finding in findings)


def _edited(text: str, finding: Finding) -> str | None:
    if finding.edit is None or finding.position is None:
        return None
    start = _line_start(text, finding.position.line) + finding.position.column - 1
    end = start + len(finding.edit.old)
    if text[start:end] != finding.edit.old:
        return None
    return text[:start] + finding.edit.new + text[end:]


def _line_start(text: str, line: int) -> int:
    offset = 0
    for content in lines_of(text)[: line - 1]:
        offset += len(content)
        offset += 2 if text.startswith("\r\n", offset) else 1
    return offset


def unified(repaired: Repair) -> str:
    """What the repairs change, as a unified diff; empty for none."""
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(
            repaired.before.splitlines(keepends=True),
            repaired.after.splitlines(keepends=True),
            f"a/{repaired.file}",
            f"b/{repaired.file}",
        )
    )
