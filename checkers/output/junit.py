"""For CI servers: JUnit XML as Jenkins and others read it; a test case a file."""

from __future__ import annotations

from html import escape

from checkers.report import Report
from gptoss_builder.findings import Finding, Severity


def render(report: Report) -> str:
    """The report as JUnit XML: errors fail their file's case, advice is its output."""
    files = list(dict.fromkeys([*report.files, *(finding.file for finding in report.findings)]))
    failing = {f.file for f in report.findings if f.severity is Severity.ERROR}
    cases = "".join(_case(file, report.of(file)) for file in files)
    counts = f'tests="{len(files)}" failures="{len(failing)}" errors="0"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites name="gptoss-check" {counts}>\n'
        f'  <testsuite name="gptoss-check" {counts} skipped="0" time="0">\n'
        f"{cases}  </testsuite>\n</testsuites>\n"
    )


def _case(file: str, findings: tuple[Finding, ...]) -> str:
    errors = [_one(f) for f in findings if f.severity is Severity.ERROR]
    advice = [_one(f) for f in findings if f.severity is Severity.ADVICE]
    inside = ""
    if errors:
        message = _quoted(errors[0] if len(errors) == 1 else f"{len(errors)} errors")
        text = escape(legal("\n".join(errors)))
        inside += f'      <failure type="error" message={message}>{text}</failure>\n'
    if advice:
        inside += f"      <system-out>{escape(legal(chr(10).join(advice)))}</system-out>\n"
    name = _quoted(file or "<mapping>")
    head = f'    <testcase classname="gptoss-check" name={name} time="0"'
    return f"{head}>\n{inside}    </testcase>\n" if inside else f"{head}/>\n"


def _quoted(text: str) -> str:
    return f'"{escape(legal(text))}"'


def _one(finding: Finding) -> str:
    return str(finding)


def legal(text: str) -> str:
    """The text without characters that XML 1.0 cannot hold, escaped or not."""
    return "".join(character if _in_xml(ord(character)) else "\ufffd" for character in text)


def _in_xml(code: int) -> bool:
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or 0x10000 <= code <= 0x10FFFF
    )
