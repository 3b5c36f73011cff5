"""For programs: one JSON object. Its form changes only together with `version`."""

from __future__ import annotations

import json

from checkers.report import Report
from gptoss_builder.findings import Finding, Severity


def render(report: Report) -> str:
    """The report as JSON; positions count from 1, and are null for a whole file."""
    return (
        json.dumps(
            {
                "version": 1,
                "findings": [_finding(finding) for finding in report.findings],
                "summary": {
                    "files": len(report.files),
                    "errors": report.count(Severity.ERROR),
                    "advice": report.count(Severity.ADVICE),
                    "suppressed": report.suppressed,
                    "without_plan": list(report.unplanned),
                },
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n"
    )


def _finding(finding: Finding) -> dict[str, object]:
    position = finding.position
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "fix": finding.fix,
        "file": finding.file,
        "field": finding.field,
        "line": position.line if position is not None else None,
        "column": position.column if position is not None else None,
        "source": finding.source,
    }
