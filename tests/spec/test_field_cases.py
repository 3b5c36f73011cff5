"""Group (a) of the failures from the field: what YAML and configuration readers got wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptoss_builder.errors import InputError, SpecError
from gptoss_builder.spec.load import load_spec, read_document
from tests.spec.examples import LEGAL, at, edited, only, read

FLOATS = {
    "1e-4": 1e-4,
    "2e-5": 2e-5,
    "1.5e5": 1.5e5,
    "1.0e4": 1e4,
    "1e+4": 1e4,
    "1E4": 1e4,
    ".5": 0.5,
    "5.": 5.0,
    "1.0e-4": 1e-4,
    "12": 12.0,
}
FLOAT_FIELDS = {
    "model.attention.rope.theta": "theta: 1.5e5",
    "training.optimizer.lr": "lr: 1e-3",
    "model.moe.aux_loss": "aux_loss: 0.01",
}


def value_of(spec: object, path: str) -> object:
    for name in path.split("."):
        spec = getattr(spec, name)
    return spec


@pytest.mark.parametrize(
    ("path", "written"),
    [
        (path, written)
        for path in FLOAT_FIELDS
        for written in FLOATS
        if FLOATS[written] > 1 or "theta" not in path
    ],
)
def test_a1_every_way_of_writing_a_float_is_that_float(path: str, written: str) -> None:
    old = FLOAT_FIELDS[path]
    document = read(edited(old, f"{old.split(':')[0]}: {written}"))
    assert document.findings == ()
    assert value_of(document.spec, path) == FLOATS[written]
    assert isinstance(value_of(document.spec, path), float)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("  layers: 3\n", "  layers: 3\n  layers: 8\n", "lines 7 and 8"),
        ("seed: 3\n", 'seed: 3\n"seed": 3\n', "lines 3 and 4"),
        ("{lr: 1e-3,", "{lr: 1e-3, lr: 1e-4,", "lines 26 and 26"),
        ("    d_ff: 72\n", "    d_ff: 72\n    top_k: 1\n", "lines 18 and 20"),
    ],
)
def test_a2_a_key_given_twice_is_refused_with_both_lines(old: str, new: str, lines: str) -> None:
    document = read(edited(old, new))
    finding = only(document)
    assert finding.code == "SP008"
    assert lines in finding.message
    assert document.spec is None


def test_a2_keys_that_are_one_key_to_some_readers_are_refused() -> None:
    findings = read(edited("seed: 3\n", "yes: 1\ntrue: 2\n")).findings
    double = [finding for finding in findings if finding.code == "SP008"]
    assert len(double) == 1
    assert "`yes` and `true`, on lines 3 and 4" in double[0].message


@pytest.mark.parametrize(
    ("old", "new", "field", "position", "fix"),
    [
        ("lr: 1e-3", "learning-rate: 1e-3", "training.optimizer.learning-rate", (26, 15), "`lr`"),
        ("seed: 3", "lr: 1e-4", "lr", (3, 1), "`training.optimizer.lr`"),
        ("    window: 33", "    windw: 33", "model.attention.windw", (14, 5), "`window`"),
        ("rope: {theta", "rope: {thetta", "model.attention.rope.thetta", (15, 12), "`theta`"),
        ("seed: 3", "top_k: 2", "top_k", (3, 1), "`model.moe.top_k`"),
        ("seed: 3", "Seed: 3", "Seed", (3, 1), "`seed`"),
        ("  layers: 3", "  n_layers: 3", "model.n_layers", (7, 3), "`layers`"),
        ("  d_model: 96", "  hidden_size: 96", "model.hidden_size", (6, 3), "`d_model`"),
        ("seed: 3", "zzz: 3", "zzz", (3, 1), "spec, name, seed, model"),
        ("seed: 3", "context: 3", "context", (3, 1), "`training.context` or `inference.context`"),
    ],
)
def test_a4_an_unknown_key_names_its_section_and_what_was_meant(
    old: str, new: str, field: str, position: tuple[int, int], fix: str
) -> None:
    finding = only(read(edited(old, new)))
    assert finding.code == "SP012"
    assert finding.field == field
    assert at(finding) == position
    assert fix in finding.fix
    section = field.rpartition(".")[0] or "the outermost level"
    assert finding.message.startswith(f"{section} has no field")


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("heads: 6", "heads: 010", "SP016", "write 10 or 8"),
        ("heads: 6", "heads: 0128", "SP016", "write 128"),
        ("heads: 6", "heads: 08", "SP016", "write 8"),
        ("heads: 6", "heads: 0x10", "SP016", "write 16"),
        ("heads: 6", "heads: 0o10", "SP016", "write 8"),
        ("heads: 6", "heads: 0b110", "SP016", "write 6"),
        ("heads: 6", "heads: 1_000", "SP016", "write 1000"),
        ("window: 33", "window: 1:30", "SP016", "write 90"),
        ("context: 130", "context: 131k", "SP016", "write 131000 or 134144"),
        ("context: 130", "context: 128K", "SP016", "write 128000 or 131072"),
        ("layers: 3", "layers: 1k", "SP016", "write 1000 or 1024"),
        ("layers: 3", "layers: 5k", "SP016", "write a whole number from 1 to 1024"),
        ("layers: 3", "layers: 4#c", "SP016", "write 4"),
        ("layers: 3", "layers: yes", "SP015", "write a whole number from 1 to 1024"),
        ("layers: 3", "layers: on", "SP015", "write a whole number from 1 to 1024"),
        ("compile: false", "compile: yes", "SP016", "write true"),
        ("compile: false", "compile: Off", "SP016", "write false"),
        ("compile: false", "compile: 0", "SP015", "write `true` or `false`"),
        ("lr: 1e-3", "lr: 1_0.5", "SP016", "write 10.5"),
        ("lr: 1e-3", "lr: 00.5", "SP015", "write a number above 0"),
    ],
)
def test_a5_what_yaml_versions_read_differently_is_refused(
    old: str, new: str, code: str, said: str
) -> None:
    finding = only(read(edited(old, new)))
    written = new.partition(": ")[2]
    assert finding.code == code
    assert f"is `{written}`" in finding.message
    assert said in finding.fix


@pytest.mark.parametrize("written", ["2G", "2GB", "2 GiB", "2gb"])
def test_a5_a_unit_that_the_field_has_anyway_is_left_out(written: str) -> None:
    finding = only(read(edited("{gpu: cpu}", f"{{gpu: cpu, margin_gib: {written}}}")))
    assert (finding.code, finding.fix) == ("SP016", "write 2")


def test_a5_a_name_may_be_a_word_that_old_yaml_takes_for_a_truth_value() -> None:
    assert load_spec(edited("name: example", "name: on")).name == "on"
    assert only(read(edited("name: example", "name: true"))).fix == 'write "true", in quotes'


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("layers: 3", "layers: true", "SP015", "is `true`, where a whole number belongs"),
        ("top_k: 2", "top_k: false", "SP015", "is `false`, where a whole number belongs"),
        ("spec: 1", "spec: true", "SP019", "is `true`, which is none of the choices"),
        ("spec: 1", "spec: 1.0", "SP019", "is `1.0`, which is none of the choices"),
        ("lr: 1e-3", "lr: true", "SP015", "is `true`, where a number belongs"),
        ("layers: 3", "layers: 12.0", "SP015", "is `12.0`, which is not written as a whole number"),
        ("layers: 3", "layers: 1e2", "SP015", "is `1e2`, which is not written as a whole number"),
        ("top_k: 2", "top_k: 6.5", "SP015", "is `6.5`, which is not a whole number"),
        ("lr: 1e-3", "lr: .nan", "SP018", "is `.nan`, which is not a finite number"),
        ("lr: 1e-3", "lr: .inf", "SP018", "is `.inf`, which is not a finite number"),
        ("lr: 1e-3", "lr: -.INF", "SP018", "is `-.INF`, which is not a finite number"),
        ("lr: 1e-3", "lr: 1.0e+400", "SP018", "is `1.0e+400`, which is too large"),
        ("layers: 3", "layers: 1e400", "SP018", "is `1e400`, which is too large"),
        ("layers: 3", "layers: 99999999999999999999999", "SP017", "above the largest, 1024"),
        ("lr: 1e-3", "lr: " + "9" * 330, "SP018", "which is too large"),
        ("layers: 3", "layers: " + "9" * 5000, "SP018", "which is too large"),
        ("layers: 3", "layers: -0", "SP017", "is `-0`, below the smallest, 1"),
        ("layers: 3", "layers: -3", "SP017", "is `-3`, below the smallest, 1"),
        ("lr: 1e-3", "lr: 0", "SP017", "is `0`, not above 0"),
        ("betas: [0.9, 0.95]", "betas: [0.9, 1]", "SP017", "betas[1] is `1`, not below 1"),
        ("d_model: 96", "d_model: 8193", "HC001", "is `8193`, above the hard cap of 8192"),
        ("d_ff: 72", "d_ff: 16384", "HC001", "is `16384`, above the hard cap of 8192"),
        ("layers: 3", 'layers: "3"', "SP015", 'is the text "3", not a number'),
        ("betas: [0.9, 0.95]", 'betas: ["0.9", 0.95]', "SP015", 'betas[0] is the text "0.9"'),
        ("betas: [0.9, 0.95]", "betas: [0.9, true]", "SP015", "betas[1] is `true`"),
    ],
)
def test_a6_a_number_field_takes_only_finite_numbers_in_range(
    old: str, new: str, code: str, said: str
) -> None:
    finding = only(read(edited(old, new)))
    assert finding.code == code
    assert said in finding.message


def test_a6_caps_themselves_are_legal() -> None:
    text = edited("d_ff: 72", "d_ff: 8192", edited("d_model: 96", "d_model: 8192"))
    assert read(text).findings == ()


def test_a6_negative_zero_is_zero_in_every_byte() -> None:
    spec = load_spec(edited("aux_loss: 0.01", "aux_loss: -0.0"))
    assert str(spec.model.moe.aux_loss) == "0.0"


CHILD = """
import json, sys
from gptoss_builder.spec.load import read_document
document = read_document(sys.argv[1])
print(json.dumps([document.spec and document.spec.model_dump(mode="json"),
                  [str(finding) for finding in document.findings]]))
"""


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a7_a_spec_reads_the_same_under_every_locale(
    tmp_path: Path, locale: dict[str, str], mark: bytes
) -> None:
    path = tmp_path / "s.yaml"
    comment = "# “smart quotes” — and a dash\n"
    text = comment + edited("path: text", 'path: "données/文本"')
    path.write_bytes(mark + text.encode())
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)],
        env={"PATH": os.environ["PATH"], **locale},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )
    spec, findings = json.loads(run.stdout)
    assert findings == []
    assert spec["data"]["path"] == "données/文本"
    assert spec["name"] == "example"


def test_a7_bytes_that_are_not_utf8_are_named_by_offset_and_position() -> None:
    finding = only(read(LEGAL.replace("example", "caf\xe9").encode("latin-1")))
    assert finding.code == "SP001"
    assert "byte 17 (0xe9, counted from 0)" in finding.message
    assert at(finding) == (2, 10)
    with_mark = only(read(b"\xef\xbb\xbf" + LEGAL.replace("example", "caf\xe9").encode("latin-1")))
    assert "byte 20 (0xe9" in with_mark.message
    assert at(with_mark) == (2, 10)


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a7_utf16_is_refused(codec: str) -> None:
    assert only(read(LEGAL.encode(codec))).code in {"SP001", "SP002"}


@pytest.mark.parametrize("character", ["\0", "\x07", "\x85", "\u2028", "\ufeff", "\x7f"])
def test_a7_a_character_that_cannot_be_seen_is_refused_where_it_stands(character: str) -> None:
    finding = only(read(edited(" heads: 6", f" heads: é{character}")))
    assert finding.code == "SP002"
    assert at(finding) == (10, 13)
    assert f"U+{ord(character):04X}" in finding.message


def test_a7_a_nul_stands_where_it_is_told() -> None:
    assert at(only(read(edited("  vocab", "  \0vocab")))) == (5, 3)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "SP005"),
        ("# nothing yet\n", "SP005"),
        ("---\n", "SP005"),
        ("~\n", "SP005"),
        ("- spec: 1\n", "SP006"),
        ("spec\n", "SP006"),
        ("12\n", "SP006"),
        (LEGAL + "---\n" + LEGAL, "SP007"),
        ("model:\n\tlayers: 3\n", "SP004"),
        (edited("layers: 3", "layers:"), "SP014"),
        (edited("seed: 3", "seed:"), "SP014"),
        (edited("seed: 3", "seed: ~"), "SP015"),
        (edited("rope: {theta: 1.5e5}", "rope:"), "SP014"),
    ],
)
def test_a8_a_file_without_a_spec_gets_one_clear_finding(text: str, code: str) -> None:
    document = read(text)
    assert only(document).code == code
    assert document.spec is None


@pytest.mark.parametrize(
    "old", ["data: {path: text, tokenizer: bytes}", "inference: {context: 130}"]
)
def test_a8_a_section_without_a_value_is_not_taken_for_absent(old: str) -> None:
    name = old.partition(":")[0]
    finding = only(read(edited(old, f"{name}:")))
    assert finding.code == "SP014"
    assert finding.message == f"{name} is empty"
    assert read(edited(old, f"{name}: null")).findings == ()


def test_a8_several_documents_are_reported_with_the_faults_of_the_first() -> None:
    findings = read(edited("seed: 3", "seed: -1") + "---\nname: x\n").findings
    assert [finding.code for finding in findings] == ["SP017", "SP007"]
    assert at(findings[1]) == (LEGAL.count("\n") + 1, 1)


def test_a8_paths_that_are_no_file_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is a folder"):
        read_document(tmp_path)
    with pytest.raises(InputError, match="there is no such file"):
        read_document(tmp_path / "nothing.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_document("a\0b")


def test_a8_devices_are_empty_or_too_large() -> None:
    assert only(read_document("/dev/null")).code == "SP005"
    assert only(read_document("/dev/zero")).code == "SP003"


def test_load_spec_raises_all_faults_at_once() -> None:
    text = edited("seed: 3", "seed: -1", edited("layers: 3", "layers: three"))
    with pytest.raises(SpecError) as caught:
        load_spec(text)
    assert [finding.field for finding in caught.value.findings] == ["seed", "model.layers"]
    assert str(caught.value).count("\n") == 1
