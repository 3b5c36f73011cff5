"""What a whole run of gptoss-check found: the one thing that every output format is given."""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.findings import Finding, Severity


@dataclass(frozen=True)
class Report:
    """Findings of all files together."""

    files: tuple[str, ...]
    """Every file that was looked at, in order, as the user named it."""
    findings: tuple[Finding, ...]
    """What was found, file after file, each from its top to its end."""
    suppressed: int = 0
    """Findings that a spec accepts, with a reason, and that are not listed."""
    unplanned: tuple[str, ...] = ()
    """Specs whose errors keep a plan from being made, so that no plan rule could run."""

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def of(self, file: str) -> tuple[Finding, ...]:
        """The findings of one file."""
        return tuple(finding for finding in self.findings if finding.file == file)
