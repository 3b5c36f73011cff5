"""Repairs are made where a second check agrees, and nowhere else."""

from __future__ import annotations

from checkers.fix import repair, unified
from gptoss_builder.findings import Edit, Finding, Position

TEXT = "a: 1\nb: 2\n"


def finding(code: str, line: int, old: str, new: str, field: str = "a") -> Finding:
    return Finding(code, "m", "f", "x", field, Position(line, 1), edit=Edit(old, new))


def test_repair_that_brings_a_new_loader_finding_is_not_made():
    def check(text: str) -> tuple[Finding, ...]:
        if text.startswith("a"):
            return (finding("SP012", 1, "a", "c"),)
        return (Finding("SP013", "m", "f", "x", "zzz"),)

    assert repair("x", TEXT, check).after == TEXT


def test_repair_that_does_not_help_is_not_made():
    repaired = repair("x", TEXT, lambda text: (finding("SP012", 1, "a", "c"),))
    assert (repaired.after, repaired.count) == (TEXT, 0)


def test_repair_may_uncover_what_was_hidden_behind_it():
    def check(text: str) -> tuple[Finding, ...]:
        if text.startswith("a"):
            return (finding("SP012", 1, "a", "c"),)
        return (Finding("MO001", "m", "f", "x", "elsewhere"),)

    repaired = repair("x", TEXT, check)
    assert (repaired.after, repaired.count) == ("c: 1\nb: 2\n", 1)


def test_edit_that_does_not_match_the_text_is_not_made():
    assert repair("x", TEXT, lambda text: (finding("SP012", 2, "a", "c"),)).after == TEXT


def test_edits_follow_each_other_under_any_line_end():
    def check(text: str) -> tuple[Finding, ...]:
        found = []
        if "a:" in text:
            found.append(finding("SP012", 1, "a", "longer", "a"))
        if "b:" in text:
            found.append(finding("SP012", 3, "b", "c", "b"))
        return tuple(found)

    assert repair("x", "a: 1\r\n\rb: 2\n", check).after == "longer: 1\r\n\rc: 2\n"


def test_diff_names_the_file_and_a_missing_line_end():
    def check(text: str) -> tuple[Finding, ...]:
        return (finding("SP012", 1, "a", "c"),) if text.startswith("a") else ()

    assert unified(repair("x.yaml", "a: 1", check)) == (
        "--- a/x.yaml\n+++ b/x.yaml\n@@ -1 +1 @@\n"
        "-a: 1\n\\ No newline at end of file\n+c: 1\n\\ No newline at end of file\n"
    )
    assert unified(repair("x.yaml", TEXT, lambda text: ())) == ""
