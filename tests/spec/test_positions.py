"""Where findings point: lines and columns in characters, from 1."""

from __future__ import annotations

import pytest
import yaml

from gptoss_builder.spec import yaml_text
from gptoss_builder.spec.load import read_document
from gptoss_builder.spec.places import Places
from tests.spec.examples import LEGAL, SHIPPED, at, edited, only, read

MANY_FAULTS = """\
spec: 1
name: a/b
seed: -1
model:
  vocab: 0x3e8
  d_model: 9000
  layers: 2.5
  colour: red
  attention: {heads: six, kv_heads: 2, head_dim: 16, sinks: yes, backend: flsh}
  moe:
    experts: 5
    experts: 5
    top_k: .nan
    d_ff:
target: {gpu: !!str cpu}
"""
TOLD = """\
s.yaml:2:7: name is `a/b`, which has a wrong form; write letters, digits, `_`, `-` and `.`, \
the first not `-` or `.` [SP020]
s.yaml:3:7: seed is `-1`, below the smallest, 0; write a whole number of at least 0 [SP017]
s.yaml:5:10: model.vocab is `0x3e8`, which is not decimal; write 1000 [SP016]
s.yaml:6:12: model.d_model is `9000`, above the hard cap of 8192; \
write a whole number from 1 to 8192 [HC001]
s.yaml:7:11: model.layers is `2.5`, which is not a whole number; write 2 or 3 [SP015]
s.yaml:8:3: model has no field `colour`; its fields are vocab, d_model, layers, \
tie_embeddings, norm_eps, init_std, attention, moe [SP012]
s.yaml:9:22: model.attention.heads is `six`, where a whole number belongs; \
write a whole number of at least 1 [SP015]
s.yaml:9:61: model.attention.sinks is `yes`, which is text in YAML 1.2; write true [SP016]
s.yaml:9:75: model.attention.backend is `flsh`, which is none of the choices; \
write `flash`, if that is meant; it can be `auto`, `flash` or `math` [SP019]
s.yaml:12:5: model.moe.experts is given twice, on lines 11 and 12; keep one of them [SP008]
s.yaml:13:12: model.moe.top_k is `.nan`, which is not a finite number; \
write a whole number from 1 to 65536 [SP018]
s.yaml:14:5: model.moe.d_ff is empty; write a whole number from 1 to 8192 [SP014]
s.yaml:15:15: target.gpu has the tag `!!str`; remove it and write a plain value [SP009]
"""


def test_a_file_with_many_faults_gives_each_its_place_and_what_to_do() -> None:
    findings = read(MANY_FAULTS).findings
    assert "".join(f"{finding}\n" for finding in findings) == TOLD


def test_a_finding_carries_its_line() -> None:
    for finding in read(MANY_FAULTS).findings:
        assert finding.position is not None
        assert finding.source == MANY_FAULTS.split("\n")[finding.position.line - 1]
        assert finding.file == "s.yaml"


@pytest.mark.parametrize("before", ["é", "文", "😀", "e\u0301", "\t"])
def test_columns_count_characters_after_any_text(before: str) -> None:
    text = edited("{path: text, tokenizer: bytes}", f'{{path: "{before}", holdout: 7}}')
    finding = only(read(text))
    line = text.split("\n")[at(finding)[0] - 1]
    assert line[at(finding)[1] - 1 :] == "7}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_count_alike_with_every_line_end(end: str) -> None:
    finding = only(read(edited("top_k: 2", "top_k: two").replace("\n", end)))
    assert at(finding) == (18, 12)
    assert finding.source == "    top_k: two"


@pytest.mark.parametrize(
    ("old", "new", "position"),
    [
        ("    top_k: 2\n", "", (16, 3)),  # its section's key
        ("target: {gpu: cpu}", "target: {margin_gib: 1}", (27 + 2, 1)),
        ("spec: 1\n", "", (1, 1)),
        ("pattern: [window, full]", "pattern: [window, half]", (13, 23)),
        ("pattern: [window, full]", "pattern: []", (13, 14)),
        ("pattern: [window, full]", "pattern:\n    - window\n    - half", (15, 7)),
        ("{lr: 1e-3, betas: [0.9, 0.95]}", "\n    - lr", (26, 3)),
    ],
)
def test_a_finding_is_at_the_value_or_at_the_nearest_section(
    old: str, new: str, position: tuple[int, int]
) -> None:
    assert at(only(read(edited(old, new)))) == position


def test_a_rule_can_locate_any_field() -> None:
    document = read(LEGAL)
    places = {
        ("model", "moe", "top_k"): (18, 12),
        ("model", "moe"): (16, 3),
        ("model", "moe", "shared_experts"): (16, 3),
        ("training", "optimizer", "betas"): (26, 32),
        ("training", "optimizer", "betas", 1): (26, 38),
        ("suppress", 0, "rule"): (1, 1),
        (): (1, 1),
    }
    for path, position in places.items():
        finding = document.finding("XX001", path, "is wrong", "repair it")
        assert at(finding) == position, path
        assert finding.source == LEGAL.split("\n")[position[0] - 1]


def test_a_mapping_has_no_positions() -> None:
    data = read(edited("top_k: 2", "top_k: 0")).data
    assert data is not None
    finding = only(read_document(data))
    assert finding.position is None
    assert str(finding) == (
        "model.moe.top_k is `0`, below the smallest, 1; "
        "write a whole number from 1 to 65536 [SP017]"
    )


def test_a_finding_prints_as_one_line() -> None:
    assert str(only(read(edited("top_k: 2", "top_k: 6.5")))) == (
        "s.yaml:18:12: model.moe.top_k is `6.5`, which is not a whole number; write 6 or 7 [SP015]"
    )


TEXTS = [
    LEGAL,
    MANY_FAULTS,
    *(path.read_text(encoding="utf-8") for path in SHIPPED),
    "a: 'it''s'\nb: \"x\\u00e9y\"\nc: |\n  text\n  more\nd: >-\n  folded\n  line\n",
    "? a\n: b\n",
    "- 1\n-\n  - 2\n  - {a: , b}\n",
    "a: &x 1\nb: *x\nc: !!int 3\n<<: {d: 1}\n",
    "{a: [1, 2], 'b': {c: ~}}",
    'é: "😀"\n"文": [é, {x: y}]',
]


@pytest.mark.parametrize("text", TEXTS)
def test_both_yaml_parsers_give_the_same_values_and_places(text: str) -> None:
    fast, pure = (yaml_text.parse(text, parser) for parser in yaml_text.PARSERS)
    assert repr(fast.value) == repr(pure.value)
    assert fast.faults == pure.faults
    assert fast.unreadable == pure.unreadable
    assert fast.empty == pure.empty
    assert list(fast.places) == list(pure.places)
    ours, theirs = Places(text, fast.places), Places(text, pure.places)
    for path in fast.places:
        assert ours.find(path) == theirs.find(path), path
        assert ours.find(path, at_key=True) == theirs.find(path, at_key=True), path
        assert ours.given(path, None) == theirs.given(path, None), path


def test_libyaml_is_used_where_there_is_one() -> None:
    assert yaml.__with_libyaml__ == (yaml_text.PARSERS[0] is not yaml.SafeLoader)


BROKEN = {
    "a:\n\tb: 1": (2, 1, "a tab indents this line"),
    "a:\n  \tb: 1": (2, 3, "a tab indents this line"),
    "a: @x": (1, 4, "a value cannot start with `@`"),
    "a: `x`": (1, 4, "a value cannot start with"),
    "a: %x": (1, 4, "a value cannot start with `%`"),
    "a: *": (1, 4, "a value cannot start with `*` or `&`"),
    "a: !foo!bar x": (1, 4, "a value cannot start with `!`"),
    "a: b: c": (1, 5, "a second `: ` stands in one value"),
    "a: 1\nfoo\nb: 2": (2, 1, "this line has no colon after its key"),
    "a: 1\n  b: 2": (2, 4, "this line continues the value of the line above"),
    "a:\n  b: 1\n c: 2": (3, 2, "this does not continue the lines above"),
    "a: [1, 2\nb: 3": (1, 4, "the list that opens here is not closed"),
    "a: {x: 1 y: 2}": (1, 4, "the brace that opens here is not closed"),
    'a: "abc\nb: 1': (1, 4, "the quote that opens here is not closed"),
    "a: 'x": (1, 4, "the quote that opens here is not closed"),
    'a: "\\q"': (1, None, "a backslash in double quotes starts an escape"),
    'a: "\\UFFFFFFFF"': (1, None, "a backslash in double quotes starts an escape"),
    'a: "\\U00110000"': (1, None, "a backslash in double quotes starts an escape"),
    'a: "\\xg"': (1, None, "a backslash in double quotes starts an escape"),
    "%YAML 2.0\n---\na: 1": (1, 1, "a line that starts with `%` is not a field"),
    "- a\nb: 1": (2, 1, "this line is no item of the list above it"),
    "a: - b": (1, 4, "a list cannot start on the line of its key"),
    "a: [1,,2]": (1, 7, "a value is missing here"),
    "[1,2]]": (1, 6, "this does not continue the lines above"),
    "a: |x\n b": (1, 5, "nothing can follow `|` or `>`"),
    "b: 1\n<<<<<<< HEAD\na: 1\n=======\nb: 2\n>>>>>>> x\n": (2, 1, "a merge conflict is left here"),
}


@pytest.mark.parametrize("parser", yaml_text.PARSERS)
@pytest.mark.parametrize("text", BROKEN)
def test_text_that_is_no_yaml_is_explained_in_its_place(text: str, parser: object) -> None:
    line, column, said = BROKEN[text]
    (fault,) = yaml_text.parse(text, parser).faults
    assert fault.code == "SP004"
    assert fault.message.startswith(said)
    assert fault.position is not None
    assert fault.position.line == line
    assert column in (None, fault.position.column)  # None: the parsers differ by a character
    assert fault.fix


def test_a_template_that_was_not_filled_in_is_explained() -> None:
    finding = only(read(edited("layers: 3", "layers: {{ LAYERS }}")))
    assert finding.code == "SP011"
    assert "must be filled in first" in finding.fix
