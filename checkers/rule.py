"""What a rule is: one small file, its texts, and a check that yields problems.

The class of a rule says when it runs and what its check is given, so that a signature names
exactly what a rule may look at. A rule file decorates its check, texts first:

    @partial(SpecRule, code="MO001", title=..., why=..., bad=..., good=..., reads=(...))
    def rule(spec: Spec) -> Iterator[Problem]:
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_builder.findings import Edit, FieldPath, Severity
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import Target

if TYPE_CHECKING:
    from gptoss_builder.plan.aot import CompileReport


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a spec, before it is located in the file."""

    field: str
    """The field at fault, dotted: `model.moe.top_k`."""
    message: str
    """What is wrong, with the values that make it so."""
    fix: str
    """What to do, concretely."""
    edit: Edit | None = None
    """The repair, where there is exactly one: `--fix` applies it."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A fault in a Python file."""

    node: ast.AST
    """Where; any node that has a position."""
    message: str
    """What is wrong."""
    fix: str
    """What to do, concretely."""


@dataclass(frozen=True)
class Module:
    """One parsed Python file, as source rules see it."""

    file: str
    """The file as the user named it."""
    text: str
    """Its text."""
    tree: ast.Module
    """Its syntax tree; nothing is imported or executed."""
    parts: tuple[str, ...]
    """Parts of its absolute path: what a file may do depends on where it lies."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Texts that every rule has; `--explain` and docs/rules.md are made from them."""

    code: str
    """Family and number, and the name of the rule's file: `MO001`."""
    title: str
    """The demand, in one line: what holds in a good spec."""
    why: str
    """What goes wrong otherwise."""
    bad: str
    """The smallest piece that the rule refuses."""
    good: str
    """The same piece, repaired."""
    severity: Severity = Severity.ERROR
    """Advice can be suppressed in the spec; an error cannot."""


@dataclass(frozen=True, kw_only=True)
class LoadRule(Rule):
    """A rule that a reader applies (the loader, the parser, resolve); here is its text only."""


@dataclass(frozen=True, kw_only=True)
class FieldRule(Rule):
    """A rule about a spec: it runs when the fields that it reads are valid."""

    reads: tuple[str, ...] = ()
    """Fields, dotted, that the check looks at."""
    before_plan: bool = True
    """Whether its errors keep the plan from being made; False where no number reads the fields."""


@dataclass(frozen=True)
class SpecRule(FieldRule):
    """A rule about fields that must agree with each other."""

    check: Callable[[Spec], Iterable[Problem]]


@dataclass(frozen=True)
class TargetRule(FieldRule):
    """A rule about a spec and the card that it runs on."""

    check: Callable[[Spec, Target], Iterable[Problem]]


@dataclass(frozen=True)
class DataRule(FieldRule):
    """A rule about a spec and the data that it names; the path is the spec's folder."""

    check: Callable[[Spec, Path], Iterable[Problem]]


@dataclass(frozen=True)
class PlanRule(FieldRule):
    """A rule about what a spec comes to on its card."""

    check: Callable[[Plan], Iterable[Problem]]


@dataclass(frozen=True)
class CompileRule(Rule):
    """A rule about what the compiler made of the kernel; it runs with `--compile` only."""

    check: Callable[[Spec, CompileReport], Iterable[Problem]]


@dataclass(frozen=True)
class SuppressionRule(FieldRule):
    """The rule about suppressions.

    Its check is given the spec, every rule, the codes of the advice that was found, and the
    codes of the rules whose silence says that there is nothing to find.
    """

    check: Callable[[Spec, Mapping[str, Rule], Collection[str], Collection[str]], Iterable[Problem]]


@dataclass(frozen=True)
class SourceRule(Rule):
    """A rule about one Python file."""

    check: Callable[[Module], Iterable[SourceProblem]]


@lru_cache(maxsize=1024)
def field_path(field: str) -> FieldPath:
    """Read a dotted field: `suppress[0].rule` is `("suppress", 0, "rule")`."""
    parts: list[str | int] = []
    for piece in field.replace("[", ".[").split("."):
        parts.append(int(piece[1:-1]) if piece.startswith("[") else piece)
    return tuple(parts)
