"""Each format says the same findings, in its own form, whatever the text holds."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest

from checkers.output import FORMATS, renderer, text
from checkers.report import Report
from gptoss_builder.findings import Finding, Position, Severity

ERROR = Finding(
    "MO001",
    "top_k is 6, but there are 4 experts",
    "lower it",
    file="specs/a.yaml",
    field="model.moe.top_k",
    position=Position(14, 12),
    source="    top_k: 6",
)
ADVICE = Finding(
    "CK002",
    "a period of 5 does not divide the 12 layers",
    "set it to 4 or 6",
    file="specs/a.yaml",
    field="training.checkpoint_every",
    position=Position(20, 3),
    source="\tcheckpoint_every: 5",
    severity=Severity.ADVICE,
)
HOSTILE = Finding(
    "SP012",
    "key `a\x1b[31m%<&>\"'\n\x00\ud800::` is unknown, 100%",
    "remove it",
    file="odd, name: 100% <é>\x07.yaml",
    field="a",
    position=Position(1, 9),
    source="日本語\u0301\x1b[0m: 1",
)
NOWHERE = Finding("SP013", "the spec has no `model`", "add it", field="model")
REPORT = Report(("specs/a.yaml", "specs/b.yaml"), (ERROR, ADVICE), 2, ("specs/a.yaml",))
ODD = Report((HOSTILE.file, ""), (HOSTILE, NOWHERE))


def test_text_shows_position_caret_and_what_to_do():
    assert text.render(REPORT) == (
        "specs/a.yaml:14:12: error MO001 top_k is 6, but there are 4 experts\n"
        "    14 |     top_k: 6\n"
        "       |            ^\n"
        "  do this: lower it\n"
        "\n"
        "specs/a.yaml:20:3: advice CK002 a period of 5 does not divide the 12 layers\n"
        "    20 | \tcheckpoint_every: 5\n"
        "       | \t ^\n"
        "  do this: set it to 4 or 6\n"
        "\n"
        "specs/a.yaml: memory and plan were not judged until the errors above are repaired\n"
        "1 error, 1 advice in 2 files (2 suppressed)\n"
    )


def test_text_of_a_clean_report_says_what_was_checked():
    assert text.render(Report(("a.yaml",), ())) == "clean: 1 file checked\n"


def test_caret_stands_under_wide_and_combining_characters():
    lines = text.render(Report((HOSTILE.file,), (HOSTILE,))).splitlines()
    line = next(line for line in lines if "日本語" in line)
    caret = next(line for line in lines if line.endswith("^"))
    # Three wide characters are six cells, the accent none; then come four of the escape.
    assert caret.index("^") - line.index("日") == 6 + 4


def test_long_lines_are_cut_around_the_caret():
    long = Finding("SP012", "m", "f", "a", "", Position(1, 401), "x" * 400 + "Y" + "z" * 400)
    lines = text.render(Report(("a",), (long,))).splitlines()
    assert max(map(len, lines)) < 120
    assert lines[1][lines[2].index("^")] == "Y"
    assert lines[1].endswith("…")
    assert "| …" in lines[1]


def test_text_lets_nothing_steer_the_terminal():
    assert "\x1b" not in text.render(ODD)
    assert "\x07" not in text.render(ODD)


def test_colour_changes_no_character():
    coloured = text.render(REPORT, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text.render(REPORT)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_format_passes_control_characters_on(name):
    assert not set(renderer(name)(ODD)) & set("\x00\x07\x1b")


def test_json_holds_every_field():
    content = json.loads(renderer("json")(REPORT))
    assert content["version"] == 1
    assert content["findings"][0] == {
        "code": "MO001",
        "severity": "error",
        "message": "top_k is 6, but there are 4 experts",
        "fix": "lower it",
        "file": "specs/a.yaml",
        "field": "model.moe.top_k",
        "line": 14,
        "column": 12,
        "source": "    top_k: 6",
    }
    assert content["summary"] == {
        "files": 2,
        "errors": 1,
        "advice": 1,
        "suppressed": 2,
        "without_plan": ["specs/a.yaml"],
    }
    assert json.loads(renderer("json")(ODD))["findings"][1]["line"] is None


def test_github_annotations_escape_what_separates():
    assert renderer("github")(REPORT).splitlines() == [
        "::error file=specs/a.yaml,line=14,col=12,title=MO001::"
        "top_k is 6, but there are 4 experts; lower it",
        "::warning file=specs/a.yaml,line=20,col=3,title=CK002::"
        "a period of 5 does not divide the 12 layers; set it to 4 or 6",
    ]
    first = renderer("github")(ODD).splitlines()[0]
    assert first.startswith("::error file=odd%2C name%3A 100%25 <é>")
    assert "unknown, 100%25; remove it" in first
    assert len(renderer("github")(ODD).splitlines()) == 2


# The part of the SARIF 2.1.0 standard (OASIS, sections 3.13 to 3.30) that the format uses,
# closed: a property that is not here is a mistake.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
PLACE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["uri"],
    "properties": {"uri": {"type": "string", "pattern": r"^[A-Za-z0-9/._~%:@!$&'()*+,;=-]+$"}},
}
COUNT = {"type": "integer", "minimum": 1}
SARIF = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "artifacts": {
                        "type": "array",
                        "uniqueItems": True,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"location": PLACE},
                        },
                    },
                    "tool": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "semanticVersion": {"type": "string", "pattern": r"^\d+\.\d+"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "additionalProperties": False,
                                            "required": ["id"],
                                            "properties": {
                                                "id": {"type": "string"},
                                                "shortDescription": TEXT,
                                                "fullDescription": TEXT,
                                                "help": TEXT,
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "additionalProperties": False,
                                                    "properties": {
                                                        "level": {"enum": ["warning", "error"]}
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["message"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["warning", "error"]},
                                "message": TEXT,
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "additionalProperties": False,
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "additionalProperties": False,
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": PLACE,
                                                    "region": {
                                                        "type": "object",
                                                        "additionalProperties": False,
                                                        "required": ["startLine"],
                                                        "properties": {
                                                            "startLine": COUNT,
                                                            "startColumn": COUNT,
                                                        },
                                                    },
                                                },
                                            },
                                            "logicalLocations": {
                                                "type": "array",
                                                "items": {
                                                    "type": "object",
                                                    "properties": {
                                                        "fullyQualifiedName": {"type": "string"}
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("report", [REPORT, ODD, Report(("a.yaml",), ())])
def test_sarif_has_the_standards_form(report):
    log = json.loads(renderer("sarif")(report))
    jsonschema.Draft202012Validator(SARIF).validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code


def test_sarif_levels_and_regions_are_the_findings():
    results = json.loads(renderer("sarif")(REPORT))["runs"][0]["results"]
    assert [result["level"] for result in results] == ["error", "warning"]
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "specs/a.yaml"
    assert place["region"] == {"startLine": 14, "startColumn": 12}


def test_sarif_fingerprint_survives_lines_above_and_tells_findings_apart():
    def fingerprint(finding: Finding) -> str:
        log = json.loads(renderer("sarif")(Report((finding.file,), (finding,))))
        return log["runs"][0]["results"][0]["partialFingerprints"]["gptossFinding/v1"]

    moved = Finding(**{**_fields(ERROR), "position": Position(99, 12)})
    assert fingerprint(moved) == fingerprint(ERROR)
    assert fingerprint(ADVICE) != fingerprint(ERROR)


def _fields(finding: Finding) -> dict[str, object]:
    return {name: getattr(finding, name) for name in finding.__dataclass_fields__}


def test_junit_fails_the_case_of_each_file_with_errors():
    root = ElementTree.fromstring(renderer("junit")(REPORT))
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "2", "1")
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    first, second = suite.findall("testcase")
    assert first.get("name") == "specs/a.yaml"
    assert "MO001" in first.find("failure").text
    assert "CK002" in first.find("system-out").text
    assert list(second) == []


def test_junit_is_xml_for_any_text():
    root = ElementTree.fromstring(renderer("junit")(ODD).encode())
    assert "100%" in root.find(".//failure").text


# What the schema of Jenkins' xUnit plugin (junit-10.xsd) allows and asks for, as far as the
# format uses it: children, attributes that must be there, attributes that may be.
JUNIT: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "file"},
    ),
    "testcase": (
        {"skipped", "error", "failure", "system-out", "system-err"},
        {"name"},
        {"classname", "time", "group"},
    ),
    "failure": (set(), set(), {"type", "message"}),
    "system-out": (set(), set(), set()),
}


@pytest.mark.parametrize("report", [REPORT, ODD])
def test_junit_has_the_elements_that_ci_servers_read(report):
    for element in ElementTree.fromstring(renderer("junit")(report).encode()).iter():
        children, needed, allowed = JUNIT[element.tag]
        assert {child.tag for child in element} <= children
        assert needed <= set(element.keys()) <= needed | allowed
