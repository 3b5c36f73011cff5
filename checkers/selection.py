"""Which findings a run reports: `--select` and `--ignore`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from checkers.registry import FAMILIES, HARD_RULES, RULES
from checkers.report import Report
from gptoss_builder.errors import InputError

HARD = frozenset(code for codes in HARD_RULES.values() for code in codes)


@dataclass(frozen=True)
class Selection:
    """A choice among the rules. Hard rules are part of every choice."""

    chosen: frozenset[str]
    """Codes whose findings are reported."""

    @classmethod
    def of(cls, select: str | None, ignore: str | None) -> Selection:
        """Read the two options: codes and families, separated by commas.

        Raises:
            InputError: a code that no rule has, or a hard rule is to be ignored.
        """
        chosen = _codes(select) | HARD if select is not None else frozenset(RULES)
        ignored = _codes(ignore) if ignore is not None else frozenset()
        hard = sorted(ignored & HARD)
        if hard:
            raise InputError(
                f"--ignore takes no hard rule, and {', '.join(hard)} "
                f"{'is one' if len(hard) == 1 else 'are'}; name the other codes one by one"
            )
        return cls(chosen - ignored)

    def apply(self, report: Report) -> Report:
        """The report with the findings of the chosen rules only."""
        kept = tuple(finding for finding in report.findings if finding.code in self.chosen)
        return replace(report, findings=kept)


def _codes(text: str) -> frozenset[str]:
    codes: set[str] = set()
    for word in text.replace(" ", "").upper().split(","):
        if word in RULES:
            codes.add(word)
        elif word in FAMILIES:
            codes |= {code for code in RULES if code.startswith(word)}
        else:
            named = word or "(an empty code)"
            raise InputError(f"there is no rule {named}; gptoss-check --list prints every one")
    return frozenset(codes)
