"""A rule about the other rules' findings, so its check is given them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from checkers.rule import Problem, Rule, SuppressionRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec


@partial(
    SuppressionRule,
    code="SP102",
    title="a suppression accepts advice that is really given",
    why="Errors cannot be suppressed. A suppression that no longer matches anything would hide "
    "the next, different finding of its rule.",
    bad="suppress: [{rule: CK002, reason: a period of 5 was measured best}]   # 5 divides now",
    good="suppress: []",
    reads=("suppress",),
)
def rule(
    spec: Spec, rules: Mapping[str, Rule], given: Collection[str], judged: Collection[str]
) -> Iterator[Problem]:
    for index, entry in enumerate(spec.suppress):
        field, code = f"suppress[{index}].rule", entry.rule
        known = rules.get(code)
        if known is None:
            yield Problem(field, f"there is no rule {code}", "remove the entry")
        elif known.severity is Severity.ERROR:
            yield Problem(
                field,
                f"{code} is an error, and only advice can be suppressed",
                "remove the entry and repair what it was meant to hide",
            )
        elif code in {earlier.rule for earlier in spec.suppress[:index]}:
            yield Problem(field, f"{code} is suppressed twice", "remove one of the entries")
        elif code in judged and code not in given:
            yield Problem(field, f"{code} finds nothing to suppress here", "remove the entry")
