"""What a rule gets from a bad spec, and specs that are given as mappings."""

from __future__ import annotations

from collections import ChainMap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from gptoss_builder.findings import Severity
from gptoss_builder.spec.fields import ITEM, fields
from gptoss_builder.spec.filler import FILLER
from gptoss_builder.spec.load import load_spec, read_document
from gptoss_builder.spec.schema import Spec
from tests.spec.examples import LEGAL, edited, only, read


class _Huge(int):
    """A number with more digits than Python writes; pytest writes this name instead."""

    def __repr__(self) -> str:
        return "huge"

    __str__ = __repr__


_HUGE = _Huge(1 << 19931)


def legal_data() -> dict[str, Any]:
    data = read(LEGAL).data
    assert isinstance(data, dict)
    return data


def test_a_good_spec_has_no_filler() -> None:
    document = read(LEGAL)
    assert document.spec is document.partial
    assert document.invalid == frozenset()
    assert document.valid(())
    assert document.spec == Spec.model_validate(legal_data())


@pytest.mark.parametrize(
    ("old", "new", "invalid"),
    [
        ("top_k: 2", "top_k: two", {("model", "moe", "top_k")}),
        ("    top_k: 2\n", "", {("model", "moe", "top_k")}),
        ("top_k: 2", "topk: 2", {("model", "moe", "top_k")}),
        ("top_k: 2", "top_k: 2\n    sharedexperts: 1", {("model", "moe", "shared_experts")}),
        ("seed: 3", "lr: 1", {("training", "optimizer", "lr")}),
        ("seed: 3", "seed: 3\nseed: 4", {("seed",)}),
        ("seed: 3", "seed: &x 3", set()),
        ("seed: 3", "seed: !!int 3", {("seed",)}),
        ("seed: 3", "seed:", {("seed",)}),
        ("seed: 3", "quux: 3", set()),
        ("target: {gpu: cpu}", "target: cpu", {("target",)}),
        ("target: {gpu: cpu}\n", "", {("target",)}),
        ("[window, full]", "[window, half]", {("model", "attention", "pattern", 1)}),
        ("[0.9, 0.95]", "[0.9]", {("training", "optimizer", "betas")}),
        (
            "seed: 3",
            "kernel: {block_t: 16}",
            {("kernel", name) for name in FILLER["kernel"]} - {("kernel", "block_t")},
        ),
    ],
)
def test_a_bad_spec_keeps_what_is_good_and_fills_the_rest(
    old: str, new: str, invalid: set[tuple[str | int, ...]]
) -> None:
    document = read(edited(old, new))
    assert document.spec is None
    assert document.findings
    assert document.invalid == invalid
    assert document.partial is not None
    assert document.partial.model.d_model == 96
    assert document.partial.model.attention.window == 33


def test_a_field_is_invalid_with_its_section_and_its_parts() -> None:
    document = read(edited("[window, full]", "[window, half]"))
    assert not document.valid(("model", "attention", "pattern"))
    assert not document.valid(("model",))
    assert not document.valid(("model", "attention", "pattern", 1))
    assert document.valid(("model", "attention", "pattern", 0))
    assert document.valid(("model", "attention", "window"))


def test_an_empty_mapping_is_filled_whole() -> None:
    document = read("{}")
    assert [finding.field for finding in document.findings] == ["spec", "name", "model", "target"]
    assert document.partial is not None
    assert not document.valid(("model", "layers"))


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "a\0"])
def test_without_a_mapping_there_is_nothing_to_judge(text: str) -> None:
    document = read(text)
    assert document.data is None
    assert document.partial is None
    assert document.spec is None
    assert document.findings


def test_filler_has_a_legal_value_for_every_field() -> None:
    Spec.model_validate(FILLER)
    for pattern in fields():
        if ITEM in pattern:
            continue
        node: Any = FILLER
        for name in pattern:
            assert name in node, pattern
            node = node[name]


def test_a_bad_item_of_a_list_is_one_finding_not_two() -> None:
    assert only(read(edited("[window, full]", "[half]"))).field == "model.attention.pattern[0]"


def test_a_misspelt_key_is_one_finding_not_two() -> None:
    assert only(read(edited("top_k: 2", "topk: 2"))).code == "SP012"
    codes = [f.code for f in read(edited("top_k: 2", "topk: 2\n    top-k: 3")).findings]
    assert codes == ["SP012", "SP012"]


def test_a_misspelt_key_in_one_item_does_not_hide_what_another_item_lacks() -> None:
    items = "suppress: [{rul: CK002, reason: x}, {reason: y}]"
    fields = [finding.field for finding in read(edited("seed: 3", items)).findings]
    assert fields == ["suppress[0].rul", "suppress[1].rule"]


def test_a_misspelt_key_beside_the_right_one_is_named() -> None:
    finding = only(read(edited("top_k: 2", "top_k: 2\n    topk: 2")))
    assert finding.fix == "keep one of it and `top_k`, which is there already"
    assert finding.edit is None


def test_findings_are_cut_where_nobody_reads_on() -> None:
    document = read(LEGAL + "".join(f"key_{n}: 1\n" for n in range(4000)))
    assert len(document.findings) == 101
    assert document.findings[-1].message == "there are more than 100 faults"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("top_k: 2", "topk: 2"),
        ("top_k: 2", "top_k: 2.0"),
        ("top_k: 2", 'top_k: "2"'),
        ("heads: 6", "heads: 0b110"),
        ("compile: false", "compile: off"),
        ("compile: false", 'compile: "false"'),
        ("name: example", "name: 12"),
        ("top_k: 2", "Top-K: 2"),
        ("inference: {context: 130}", "inference: 130"),
        ("target: {gpu: cpu}", "target: cpu"),
    ],
)
def test_an_edit_repairs_its_fault(old: str, new: str) -> None:
    text = edited(old, new)
    finding = only(read(text))
    assert finding.edit is not None
    assert finding.position is not None
    lines = text.split("\n")
    line, start = lines[finding.position.line - 1], finding.position.column - 1
    assert line[start:].startswith(finding.edit.old)
    rest = line[start + len(finding.edit.old) :]
    lines[finding.position.line - 1] = line[:start] + finding.edit.new + rest
    assert read("\n".join(lines)).findings == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("heads: 6", "heads: 010"),
        ("heads: 6", "num_heads: 6"),
        ("context: 130", "context: 128k"),
        ("top_k: 2", "top_k: 2.5"),
    ],
)
def test_a_fault_with_two_repairs_has_no_edit(old: str, new: str) -> None:
    assert only(read(edited(old, new))).edit is None


def test_a_mapping_gives_the_same_spec_as_its_file() -> None:
    assert load_spec(legal_data()) == load_spec(LEGAL)
    assert load_spec(MappingProxyType(legal_data())) == load_spec(LEGAL)
    assert load_spec(ChainMap({"seed": 9}, legal_data())).seed == 9


def test_a_mapping_gives_the_same_findings_as_its_file() -> None:
    for old, new in [
        ("top_k: 2", "top_k: 0"),
        ("top_k: 2", "topk: 0"),
        ("    top_k: 2\n", ""),
        ("[window, full]", "full"),
        ("target: {gpu: cpu}", "target: []"),
    ]:
        document = read(edited(old, new))
        assert document.data is not None
        (finding,) = read_document(document.data).findings
        assert (finding.code, finding.field) == (only(document).code, only(document).field)


def test_a_spec_dumped_as_a_mapping_is_read_again() -> None:
    spec = load_spec(LEGAL)
    assert load_spec(spec.model_dump()) == spec
    assert load_spec(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.int64(3), "is a Python int64, where a whole number belongs"),
        (3 + 0j, "is a Python complex, where a whole number belongs"),
        (object(), "is a Python object, where a whole number belongs"),
        (None, "is `null`, where a whole number belongs"),
        (float("nan"), "is `nan`, which is not a finite number"),
        (2.5, "is `2.5`, which is not a whole number"),
        ({3}, "is a Python set, where a whole number belongs"),
        (_HUGE, "is `an integer of 19932 bits`, which is too large"),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused(value: object, said: str) -> None:
    data = legal_data()
    data["model"]["layers"] = value
    finding = only(read_document(data))
    assert finding.message == f"model.layers {said}"


def test_a_mapping_may_hold_tuples_but_no_sets_or_generators() -> None:
    data = legal_data()
    data["model"]["attention"]["pattern"] = ("window", "full")
    assert read_document(data).findings == ()
    for value in ({"window"}, (kind for kind in ["window"]), "window"):
        data["model"]["attention"]["pattern"] = value
        assert only(read_document(data)).code == "SP015"


def test_a_mapping_that_contains_itself_is_refused() -> None:
    data = legal_data()
    data["model"]["moe"] = data
    assert only(read_document(data)).code == "SP003"
    wide: list[object] = []
    wide.extend([wide] * 5)
    assert only(read_document({"a": wide})).code == "SP003"


def test_a_mapping_that_would_expand_to_billions_of_values_is_refused() -> None:
    tower: list[object] = [1]
    for _ in range(30):
        tower = [tower] * 5
    assert only(read_document({"a": tower})).code == "SP003"


def test_keys_of_a_mapping_are_text() -> None:
    finding = only(read_document({**legal_data(), 3: 4}))
    assert finding.code == "SP011"
    assert "a Python int" in finding.message


def test_a_document_knows_where_relative_paths_start(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(LEGAL, encoding="utf-8")
    assert read_document(path).directory == tmp_path
    assert read_document(str(path)).file == str(path)
    assert read_document("<stdin>", text=LEGAL).directory == Path()
    assert read_document(path, text=edited("seed: 3", "seed: 4")).spec != read_document(path).spec


def test_a_rule_can_make_advice() -> None:
    finding = read(LEGAL).finding("CK002", ("model", "layers"), "m", "f", Severity.ADVICE)
    assert finding.severity is Severity.ADVICE
    assert str(finding) == "s.yaml:7:11: m; f [CK002]"
