"""Every rule, in explicit tuples: what is not named here does not exist."""

from __future__ import annotations

from checkers.rule import (
    CompileRule,
    DataRule,
    LoadRule,
    PlanRule,
    Rule,
    SourceRule,
    SpecRule,
    TargetRule,
)
from checkers.source_rules import (
    ck101,
    hc101,
    kl101,
    nf001,
    nf002,
    sp201,
    sp202,
    sp203,
    tr001,
    tr002,
    tr003,
    tr004,
    tr005,
    vr101,
)
from checkers.spec_rules import (
    at001,
    at002,
    at003,
    at004,
    at005,
    at006,
    at007,
    at008,
    at009,
    at010,
    at011,
    at012,
    at013,
    ck001,
    ck002,
    ck003,
    ck004,
    kl001,
    kl002,
    kl003,
    kl004,
    kl005,
    kl006,
    kl007,
    kl009,
    kl010,
    kl011,
    mo001,
    mo002,
    mo003,
    mo004,
    mo005,
    mo006,
    mo007,
    mo008,
    sp101,
    sp102,
    sp104,
    tn001,
    tn002,
    tn003,
    tn004,
    tn005,
    tn006,
    tn007,
    tn008,
    tn009,
    tn010,
    tn011,
    tn012,
    tn013,
    tn014,
    tn015,
    tn016,
    tn017,
    tn018,
    tn019,
    tn020,
    tn021,
    tn022,
    tn023,
    vr001,
    vr002,
)
from gptoss_builder.spec.problems import PROBLEMS

LOAD_RULES: tuple[LoadRule, ...] = tuple(
    LoadRule(
        code=problem.code,
        title=problem.title[0].lower() + problem.title[1:],
        why=problem.why,
        bad=problem.bad,
        good=problem.good,
    )
    for problem in PROBLEMS.values()
)
"""What the loader finds; its table is in `gptoss_builder.spec.problems`."""

SPEC_RULES: tuple[SpecRule, ...] = (
    at001.rule,
    at002.rule,
    at003.rule,
    at004.rule,
    at005.rule,
    at006.rule,
    at007.rule,
    at008.rule,
    at009.rule,
    at010.rule,
    at011.rule,
    at012.rule,
    ck001.rule,
    ck002.rule,
    kl001.rule,
    kl002.rule,
    kl005.rule,
    kl006.rule,
    kl010.rule,
    mo001.rule,
    mo002.rule,
    mo003.rule,
    mo004.rule,
    mo005.rule,
    sp101.rule,
    tn001.rule,
    tn002.rule,
    tn003.rule,
    tn004.rule,
    tn005.rule,
    tn006.rule,
    tn007.rule,
    tn008.rule,
    tn009.rule,
    tn010.rule,
    tn011.rule,
    tn012.rule,
    tn013.rule,
    tn014.rule,
    tn015.rule,
)
"""About the spec alone."""

TARGET_RULES: tuple[TargetRule, ...] = (
    at013.rule,
    kl003.rule,
    kl004.rule,
    kl007.rule,
    kl009.rule,
    mo006.rule,
    mo007.rule,
    mo008.rule,
    tn016.rule,
)
"""About the spec and its card."""

DATA_RULES: tuple[DataRule, ...] = (
    tn017.rule,
    tn018.rule,
    tn019.rule,
    tn020.rule,
    tn021.rule,
    tn022.rule,
    tn023.rule,
)
"""About the spec and the data that it names, where that is there."""

PLAN_RULES: tuple[PlanRule, ...] = (
    ck003.rule,
    ck004.rule,
    vr001.rule,
    vr002.rule,
)
"""About what the spec comes to."""

SOURCE_RULES: tuple[SourceRule, ...] = (
    ck101.rule,
    hc101.rule,
    kl101.rule,
    nf001.rule,
    nf002.rule,
    sp201.rule,
    sp202.rule,
    tr001.rule,
    tr002.rule,
    tr003.rule,
    tr004.rule,
    tr005.rule,
    vr101.rule,
)
"""About Python files."""

COMPILE_RULES: tuple[CompileRule, ...] = (kl011.rule,)
"""About what the compiler made of the kernel."""

UNRESOLVED = sp104.rule
"""What resolve refuses."""

UNPARSABLE = sp203.rule
"""What Python's parser refuses."""

UNUSED_SUPPRESSION = sp102.rule
"""About suppressions, once everything else was found."""

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in sorted(
        (
            *LOAD_RULES,
            *SPEC_RULES,
            *TARGET_RULES,
            *DATA_RULES,
            *PLAN_RULES,
            *SOURCE_RULES,
            *COMPILE_RULES,
            UNRESOLVED,
            UNPARSABLE,
            UNUSED_SUPPRESSION,
        ),
        key=lambda rule: rule.code,
    )
}
"""Every rule by its code."""

FAMILIES = {
    "AT": "attention and cache",
    "CK": "gradient checkpointing",
    "HC": "hard caps",
    "KL": "kernel launch",
    "MO": "mixture of experts",
    "NF": "no fallback",
    "SP": "schema, YAML and what is read from files",
    "TN": "training and data",
    "TR": "scope of Triton",
    "VR": "memory",
}
"""What the letters of a code stand for."""

HARD_RULES: dict[str, tuple[str, ...]] = {
    "Triton only for W1/W3": ("TR001", "TR002", "TR003", "TR004", "TR005"),
    "hard caps": ("HC001", "HC101"),
    "no silent fallback": ("NF001", "NF002"),
    "it fits": ("VR001", "VR002", "VR101"),
    "alternation": ("AT002", "AT005", "AT007"),
}
"""The rules behind each hard rule of docs/architecture.md; all of them are errors."""
