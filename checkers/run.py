"""Runs the rules on a document, a plan or a Python file, and applies suppressions."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from checkers.data_files import data_is_here
from checkers.registry import (
    COMPILE_RULES,
    DATA_RULES,
    PLAN_RULES,
    RULES,
    SOURCE_RULES,
    SPEC_RULES,
    TARGET_RULES,
    UNPARSABLE,
    UNRESOLVED,
    UNUSED_SUPPRESSION,
)
from checkers.rule import FieldRule, Module, Problem, Rule, SourceProblem, SourceRule, field_path
from gptoss_builder.errors import InputError, LaunchError
from gptoss_builder.findings import Finding, Position, Severity
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.load import Document
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target, lookup


@dataclass(frozen=True)
class SpecReport:
    """What the rules say about a spec before there is a plan."""

    findings: tuple[Finding, ...]
    """Of the spec, target and data rules."""
    plannable: bool
    """Whether the numbers of a plan would mean something."""


def check_document(document: Document, target: Target | None) -> SpecReport:
    """Run the rules that need no plan on the valid fields of a document.

    Args:
        document: a loaded spec; its own findings are not repeated here.
        target: the card, or None when it is not known; then rules about it do not run.
    """
    spec = document.partial
    if spec is None:
        return SpecReport((), plannable=False)
    findings: list[Finding] = []
    plannable = document.spec is not None and target is not None
    for rule, problems in _problems(document, spec, target):
        found = _located(document, rule, problems)
        findings += found
        if found and rule.before_plan and rule.severity is Severity.ERROR:
            plannable = False
    return SpecReport(tuple(findings), plannable)


def _problems(
    document: Document, spec: Spec, target: Target | None
) -> Iterator[tuple[FieldRule, Iterable[Problem]]]:
    for rule in SPEC_RULES:
        if _readable(document, rule):
            yield rule, rule.check(spec)
    if target is not None:
        for target_rule in TARGET_RULES:
            if _readable(document, target_rule):
                yield target_rule, target_rule.check(spec, target)
    for data_rule in DATA_RULES:
        if _readable(document, data_rule):
            yield data_rule, data_rule.check(spec, document.directory)


def check_plan(document: Document, plan: Plan) -> list[Finding]:
    """Run the plan rules on the plan of a document."""
    findings: list[Finding] = []
    for rule in PLAN_RULES:
        findings += _located(document, rule, rule.check(plan))
    return findings


def check_compiled(document: Document, plan: Plan) -> list[Finding]:
    """Compile the kernels of a plan for its card, and judge what the compiler says.

    Raises:
        MissingTritonError: Triton is not installed.
    """
    from gptoss_builder.plan.aot import compile_report, requests_of

    findings: list[Finding] = []
    for report in compile_report(requests_of(plan)):
        for rule in COMPILE_RULES:
            findings += _located(document, rule, rule.check(plan.spec, report))
    return findings


def unresolved(document: Document, error: InputError) -> Finding:
    """What resolve refused, as a finding."""
    message, _, fix = str(error).rpartition("; ")
    field = "kernel" if isinstance(error, LaunchError) else "target.gpu"
    return document.finding(UNRESOLVED.code, field_path(field), message or str(error), fix)


def _readable(document: Document, rule: FieldRule) -> bool:
    if not document.invalid:
        return True
    return all(document.valid(field_path(field)) for field in rule.reads)


def _located(document: Document, rule: Rule, problems: Iterable[Problem]) -> list[Finding]:
    findings = []
    for problem in problems:
        finding = document.finding(
            rule.code,
            field_path(problem.field),
            problem.message,
            problem.fix,
            severity=rule.severity,
        )
        findings.append(replace(finding, edit=problem.edit) if problem.edit else finding)
    return findings


def suppress(
    document: Document, findings: Iterable[Finding], *, plan: Plan | None
) -> tuple[list[Finding], int]:
    """Drop the advice that the spec accepts, and report suppressions without use.

    Args:
        document: the spec, with its `suppress` list.
        findings: everything that was found in it.
        plan: what the spec came to; without one nothing is known to be unused.

    Returns:
        What remains, and how many findings were dropped.
    """
    found = list(findings)
    spec = document.partial
    if spec is None or not document.valid(("suppress",)):
        return found, 0
    accepted = {entry.rule for entry in spec.suppress}
    advice = {finding.code for finding in found if finding.severity is Severity.ADVICE}
    kept = [
        finding
        for finding in found
        if finding.code not in accepted or finding.severity is Severity.ERROR
    ]
    dropped = len(found) - len(kept)
    judged = _judged(document, plan) if plan is not None else frozenset()
    unused = UNUSED_SUPPRESSION.check(spec, RULES, advice, judged)
    return kept + _located(document, UNUSED_SUPPRESSION, unused), dropped


def _judged(document: Document, plan: Plan) -> frozenset[str]:
    """Rules whose silence says that they have nothing to find, here and elsewhere.

    Not so for a card that `--target` put in place of the spec's own, and for data that lie on
    another machine.
    """
    spec = document.spec
    apart: list[FieldRule] = []
    if spec is None or lookup(spec.target.gpu).name != plan.target.name:
        apart += [*TARGET_RULES, *PLAN_RULES]
    if spec is None or not data_is_here(spec, document.directory):
        apart += DATA_RULES
    return frozenset(RULES) - {rule.code for rule in apart}


def check_python(file: str) -> list[Finding]:
    """Run the source rules on a Python file, by name.

    Raises:
        InputError: it cannot be read.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        return [_unparsable(file, [], error)]
    return check_source(file, text.replace("\r\n", "\n").replace("\r", "\n"), path)


def check_source(file: str, text: str, path: Path) -> list[Finding]:
    """Run the source rules on one Python file, which is parsed and never imported.

    Args:
        file: the file as the user named it.
        text: its text.
        path: where it lies: a few files may do what the others may not.
    """
    lines = text.split("\n")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [_unparsable(file, lines, error)]
    module = Module(file, text, tree, path.resolve().parts)
    findings: list[Finding] = []
    for rule in SOURCE_RULES:
        findings += [_in_source(module, lines, rule, problem) for problem in rule.check(module)]
    return sorted(findings, key=by_position)


def _in_source(
    module: Module, lines: list[str], rule: SourceRule, problem: SourceProblem
) -> Finding:
    line = getattr(problem.node, "lineno", 1)
    source = lines[line - 1] if line <= len(lines) else ""
    # ast counts UTF-8 bytes, positions count characters.
    offset = getattr(problem.node, "col_offset", 0)
    column = len(source.encode()[:offset].decode(errors="replace")) + 1
    return Finding(
        rule.code,
        problem.message,
        problem.fix,
        file=module.file,
        position=Position(line, column),
        source=source,
        severity=rule.severity,
    )


def _unparsable(file: str, lines: list[str], error: Exception) -> Finding:
    line = (error.lineno or 1) if isinstance(error, SyntaxError) else 1
    column = (error.offset or 1) if isinstance(error, SyntaxError) else 1
    reason = error.msg if isinstance(error, SyntaxError) else str(error) or "too deeply nested"
    return Finding(
        UNPARSABLE.code,
        f"this is not Python that can be parsed: {reason}",
        "correct the syntax; the rules read Python's syntax tree",
        file=file,
        position=Position(max(line, 1), max(column, 1)),
        source=lines[line - 1] if 0 < line <= len(lines) else "",
    )


def by_position(finding: Finding) -> tuple[int, int, str]:
    """Sort key: from the top of the file to its end, then by code."""
    where = finding.position or Position(0, 0)
    return where.line, where.column, finding.code
