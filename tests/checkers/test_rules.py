"""Every rule finds what its bad example holds, exactly, and nothing in its good one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import checkers.source_rules
import checkers.spec_rules
from checkers.docs import PAGE, page
from checkers.registry import (
    COMPILE_RULES,
    FAMILIES,
    HARD_RULES,
    LOAD_RULES,
    PLAN_RULES,
    RULES,
    SOURCE_RULES,
    UNPARSABLE,
    UNRESOLVED,
)
from checkers.rule import FieldRule, field_path
from checkers.run import check_source
from gptoss_builder.findings import Finding, Severity
from gptoss_builder.pipeline import check
from gptoss_builder.spec.schema import Frozen, Spec

EXAMPLES = Path(__file__).parent / "rules"
SOURCE = {rule.code for rule in (*SOURCE_RULES, UNPARSABLE)}
COMPILED = {rule.code for rule in COMPILE_RULES}
# What resolve refuses is by design what no rule foresees: test_pipeline.py provokes it.
WITH_EXAMPLES = sorted(RULES.keys() - {UNRESOLVED.code})
EXAMPLE_CODES = [
    pytest.param(code, marks=[pytest.mark.slow] if code in COMPILED else [])
    for code in WITH_EXAMPLES
]
PLAN = {rule.code for rule in PLAN_RULES}


MEMORY = re.compile(r"\d[\d.]*|\((forward|backward|loss|optimizer)[^)]*\)")


def comparable(line: str) -> str:
    """The line without what the memory model or the compiler says, which have their own tests."""
    if line[-6:-1] not in PLAN | COMPILED:
        return line
    place, _, message = line.partition(": ")
    return f"{place}: {MEMORY.sub('#', message)}"


def findings(
    code: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[Finding]:
    monkeypatch.chdir(EXAMPLES / code.lower())
    if code in COMPILED:
        pytest.importorskip("triton")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if code not in SOURCE:
        return list(check(f"{kind}.yaml", compile_kernels=code in COMPILED).findings)
    text = Path(f"{kind}.py").read_text(encoding="utf-8")
    place = text.splitlines()[0].removeprefix("# lies at: ")
    return check_source(f"{kind}.py", text, Path("/somewhere", place))


@pytest.mark.parametrize("code", EXAMPLE_CODES)
def test_bad_example_gives_exactly_its_findings(code, monkeypatch, tmp_path):
    found = [str(finding) for finding in findings(code, "bad", monkeypatch, tmp_path)]
    expected = Path("expected.txt").read_text(encoding="utf-8").splitlines()
    assert list(map(comparable, found)) == list(map(comparable, expected))
    assert any(line.endswith(f"[{code}]") for line in found)


@pytest.mark.parametrize("code", EXAMPLE_CODES)
def test_good_example_is_clean(code, monkeypatch, tmp_path):
    assert [str(finding) for finding in findings(code, "good", monkeypatch, tmp_path)] == []


@pytest.mark.parametrize("code", sorted(RULES))
def test_rule_has_texts_a_family_and_its_own_file(code):
    rule = RULES[code]
    assert re.fullmatch(r"[A-Z]{2}\d{3}", code)
    assert code[:2] in FAMILIES
    for text in (rule.title, rule.why, rule.bad, rule.good):
        assert text.strip()
    assert not rule.title.endswith(".")
    assert rule.why.endswith((".", "?"))
    assert rule.bad != rule.good
    if rule not in LOAD_RULES:
        package = checkers.source_rules if code in SOURCE else checkers.spec_rules
        assert (Path(package.__file__).parent / f"{code.lower()}.py").is_file()


@pytest.mark.parametrize("package", [checkers.spec_rules, checkers.source_rules])
def test_every_rule_file_is_registered_under_its_name(package):
    files = {path.stem.upper() for path in Path(package.__file__).parent.glob("[a-z]*.py")}
    assert files <= RULES.keys()
    for path in Path(package.__file__).parent.glob("[a-z]*.py"):
        assert f'code="{path.stem.upper()}"' in path.read_text(encoding="utf-8")


def test_every_example_folder_belongs_to_a_rule():
    folders = {path.name.upper() for path in EXAMPLES.iterdir() if path.name != "data"}
    assert folders == set(WITH_EXAMPLES)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES.values() if isinstance(rule, FieldRule)], ids=lambda r: r.code
)
def test_fields_that_a_rule_reads_exist(rule):
    for field in rule.reads:
        model = Spec
        for part in field_path(field):
            assert part in model.model_fields, f"{rule.code} reads {field}"
            model = _section(model.model_fields[part].annotation) or model


def _section(annotation: object) -> type[Frozen] | None:
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return annotation
    parts = getattr(annotation, "__args__", ())
    return next((section for part in parts if (section := _section(part))), None)


def test_hard_rules_are_errors():
    for codes in HARD_RULES.values():
        for code in codes:
            assert RULES[code].severity is Severity.ERROR


def test_rules_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m checkers.docs"
