"""Group (i) of the failures from the field, as far as a spec can bring them about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.examples import at, edited, only, read

BILLION_LAUGHS = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:os.system ['touch {marker}']",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {marker}']",
        "!!python/object/apply:os.system\n  - touch {marker}",
        "!!str example",
        "!custom example",
        "! example",
    ],
)
def test_i2_a_tag_is_refused_and_nothing_runs(tag: str, tmp_path: Path) -> None:
    marker = tmp_path / "made"
    document = read(edited("name: example", f"name: {tag.format(marker=marker)}"))
    finding = only(document)
    assert finding.code == "SP009"
    assert finding.message.startswith("name has the tag `!")
    assert at(finding) == (2, 7)
    assert document.spec is None
    assert not marker.exists()


def test_i2_a_tag_on_a_key_or_the_root_is_refused() -> None:
    assert only(read(edited("seed: 3", "!!str seed: 3"))).code == "SP009"
    assert only(read("!!map\n" + edited("seed: 3", "seed: 4"))).code == "SP009"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../../x", "has a wrong form"),
        ("/tmp/x", "has a wrong form"),
        ("a/b", "has a wrong form"),
        ("a\\b", "has a wrong form"),
        ("..", "has a wrong form"),
        (".hidden", "has a wrong form"),
        ("-rf", "has a wrong form"),
        ("a b", "has a wrong form"),
        ("é", "has a wrong form"),
        ("a\n", "has a wrong form"),
        ("", "is empty"),
        ("a\0b", "has the character U+0000"),
        ("x" * 300, "has 300 characters"),
    ],
)
def test_i3_a_name_cannot_leave_the_output_folder(name: str, said: str) -> None:
    escaped = name.replace("\\", "\\\\").replace("\0", "\\0").replace("\n", "\\n")
    finding = only(read(edited("name: example", f'name: "{escaped}"')))
    assert finding.code == "SP020"
    assert said in finding.message


def test_an_alias_bomb_is_refused_and_never_expanded() -> None:
    document = read("a: &a [x, x]\n" + BILLION_LAUGHS)
    assert {finding.code for finding in document.findings} <= {"SP010", "SP012", "SP013", "SP003"}
    assert len(document.findings) <= 101
    assert len(str(document.data)) < 1000


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: example", "name: &n example", "name has the anchor `&n`"),
        ("  layers: 3", "  <<: {layers: 3}\n  layers: 3", "model has a merge key, `<<`"),
        ("  moe:", "  moe: &moe", "model.moe has the anchor `&moe`"),
    ],
)
def test_an_anchor_or_a_merge_key_is_refused(old: str, new: str, said: str) -> None:
    finding = only(read(edited(old, new)))
    assert finding.code == "SP010"
    assert finding.message == said


def test_an_alias_is_refused_once_and_its_field_is_not_judged() -> None:
    document = read(edited("top_k: 2", "top_k: *n", edited("name: example", "name: &n example")))
    assert [finding.code for finding in document.findings] == ["SP010", "SP010"]
    assert document.findings[1].message == "model.moe.top_k is the alias `*n`"
    assert not document.valid(("model", "moe", "top_k"))
    assert document.valid(("name",))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "!x [", "&x ["])
@pytest.mark.parametrize("count", [40, 900, 100_000])
def test_deep_nesting_is_refused_quickly(opening: str, count: int) -> None:
    codes = [finding.code for finding in read(opening * count).findings]
    assert set(codes) <= {"SP003", "SP004", "SP009", "SP010", "SP011"}
    assert codes


def test_too_many_values_are_refused() -> None:
    finding = only(read("a: [" + "1," * 20_000 + "]"))
    assert finding.code == "SP003"
    assert finding.message == "there are more than 10000 keys and values"


def test_what_could_upset_a_terminal_is_escaped() -> None:
    text = edited("seed: 3", '"\\e[31m\\u202e": 3', edited("name: example", 'name: "\\e[2J"'))
    for finding in read(text).findings:
        assert str(finding).isprintable()
        assert finding.field.isprintable()
