"""For GitHub Actions: workflow commands, which become annotations in the pull request."""

from __future__ import annotations

from checkers.output.text import printable
from checkers.report import Report
from gptoss_builder.findings import Finding, Severity

_COMMANDS = {Severity.ERROR: "error", Severity.ADVICE: "warning"}


def render(report: Report) -> str:
    """One `::error` or `::warning` a finding; nothing at all for a clean report."""
    return "".join(f"{_command(finding)}\n" for finding in report.findings)


def _command(finding: Finding) -> str:
    properties = [f"file={_property(finding.file)}"]
    if finding.position is not None:
        properties += [f"line={finding.position.line}", f"col={finding.position.column}"]
    properties.append(f"title={_property(finding.code)}")
    text = f"{finding.message}; {finding.fix}" if finding.fix else finding.message
    return printable(f"::{_COMMANDS[finding.severity]} {','.join(properties)}::{_data(text)}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
