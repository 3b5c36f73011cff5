"""For code scanning: SARIF 2.1.0 (OASIS standard, March 2020)."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from urllib.parse import quote

from checkers.registry import RULES
from checkers.report import Report
from checkers.rule import Rule
from gptoss_builder import __version__
from gptoss_builder.findings import Finding, Severity

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {Severity.ERROR: "error", Severity.ADVICE: "warning"}


def render(report: Report) -> str:
    """The report as a SARIF log of one run; columns count characters."""
    codes = sorted({finding.code for finding in report.findings})
    indices = {code: index for index, code in enumerate(codes)}
    run = {
        "tool": {
            "driver": {
                "name": "gptoss-check",
                "semanticVersion": __version__,
                "rules": [_rule(RULES[code]) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": _uri(file)}} for file in report.files],
        "results": [_result(finding, indices[finding.code]) for finding in report.findings],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\nRefused:\n\n{rule.bad}\n\nAccepted:\n\n{rule.good}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int) -> dict[str, object]:
    text = f"{finding.message}; {finding.fix}" if finding.fix else finding.message
    place: dict[str, object] = {"artifactLocation": {"uri": _uri(finding.file)}}
    if finding.position is not None:
        place["region"] = {
            "startLine": finding.position.line,
            "startColumn": finding.position.column,
        }
    location: dict[str, object] = {"physicalLocation": place}
    if finding.field:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.field}]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"gptossFinding/v1": _fingerprint(finding)},
    }


def _fingerprint(finding: Finding) -> str:
    # Without the line number: a finding stays the same when lines above it move.
    identity = "\0".join((finding.code, finding.file, finding.field, finding.source.strip()))
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _uri(file: str) -> str:
    path = PurePath(file)
    if path.is_absolute():
        return path.as_uri()
    return (
        quote(path.as_posix() if file else "mapping", safe="/<>")
        .replace("<", "%3C")
        .replace(">", "%3E")
    )
