"""The published JSON Schema: fresh, valid, and of one mind with the loader."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gptoss_builder.spec import json_schema
from gptoss_builder.spec.fields import fields
from gptoss_builder.spec.load import read_document
from tests.spec.examples import LEGAL, ROOT, SHIPPED, edited, read

VALIDATOR = Draft202012Validator(json_schema.spec_schema())

PUBLISHED = dict(json_schema.published(ROOT))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_generated_file_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PUBLISHED[path], "run `make docs`"


def test_the_schema_is_a_json_schema_and_the_package_carries_it() -> None:
    Draft202012Validator.check_schema(json_schema.packaged_schema())
    assert json_schema.packaged_schema() == json_schema.spec_schema()
    assert "$id" in json_schema.packaged_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_spec_is_legal_and_names_the_schema(path: Path) -> None:
    document = read_document(path)
    assert document.findings == ()
    assert document.spec is not None
    assert document.spec.name == path.stem
    assert list(VALIDATOR.iter_errors(document.data)) == []
    first = document.text.split("\n")[0]
    reference = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / reference).resolve() == ROOT / "docs/spec.schema.json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("top_k: 2", "topk: 2"),
        ("    top_k: 2\n", ""),
        ("top_k: 2", "top_k: two"),
        ("top_k: 2", "top_k: true"),
        ("top_k: 2", "top_k: 2.5"),
        ("top_k: 2", "top_k: 0"),
        ("d_model: 96", "d_model: 8193"),
        ("lr: 1e-3", "lr: 0"),
        ("precision: fp32", "precision: fp16"),
        ("[window, full]", "[window, half]"),
        ("[window, full]", "[]"),
        ("[0.9, 0.95]", "[0.9]"),
        ("[0.9, 0.95]", "[0.9, 0.9, 0.9]"),
        ("[0.9, 0.95]", "[0.9, 1]"),
        ("name: example", "name: ../x"),
        ("name: example", 'name: ""'),
        ("seed: 3", "kernel: fast"),
        ("seed: 3", "kernel: {block_t: 16}"),
        ("seed: 3", "suppress: [{rule: x, reason: y}]"),
        ("seed: 3", "suppress: {}"),
        ("target: {gpu: cpu}", "target: null"),
        ("spec: 1", "spec: 2"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(old: str, new: str) -> None:
    document = read(edited(old, new))
    assert document.findings
    assert list(VALIDATOR.iter_errors(document.data))


def test_every_field_has_a_hover_text_and_its_own_name_as_title() -> None:
    schema = json_schema.spec_schema()
    sections = [schema, *schema["$defs"].values()]
    named = [item for section in sections for item in section["properties"].items()]
    assert len(named) == len([p for p in fields() if p and p[-1] != "[]"])
    for name, field in named:
        assert field["title"] == name
        described = field.get("description") or schema["$defs"][field["$ref"][8:]]["description"]
        assert described.strip() == described
        assert "\n" not in described


def test_the_reference_page_has_every_field_with_its_meaning() -> None:
    rows = [row for row in PUBLISHED[ROOT / "docs/spec.md"].split("\n") if row.startswith("| `")]
    assert len(rows) == len([p for p in fields() if p and p[-1] != "[]"])
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "").strip("|").split("|")]
        assert len(cells) == 4
        assert all(cells), row


def test_the_reference_page_has_a_whole_spec_that_is_legal() -> None:
    page = PUBLISHED[ROOT / "docs/spec.md"]
    (example,) = (block for block in page.split("```") if "\nspec: 1\n" in block)
    document = read(example.removeprefix("yaml\n"))
    assert (document.findings, document.spec is not None) == ((), True)
    assert document.text == (ROOT / "specs/gpt_oss_lite.yaml").read_text(encoding="utf-8")


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Give every path in plain values, sections included."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, (dict, list)):
            found += leaves(value, (*path, key))
    return found


FULL: dict[str, Any] = {
    **read(LEGAL).data,  # type: ignore[dict-item]  # LEGAL is a mapping
    "kernel": {"block_t": 16, "block_k": 32, "block_n": 32, "num_warps": 4, "num_stages": 2},
    "suppress": [{"rule": "CK002", "reason": "known"}],
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10_000),
    st.sampled_from([2**31 - 1, 2**31, 2**40, 2**40 + 1, 10**25, 8192, 8193]),
    st.floats(-2, 2, allow_nan=False).filter(lambda x: x != int(x)),
    st.sampled_from(
        ["", "auto", "full", "window", "fp32", "CK001", "a/b", "x\0", "1e-4", "é", "12"]
    ),
    st.sampled_from([[], {}, ["full"], [0.5, 0.5], [1], ["x"], [[]], [{}], {"a": 1}]),
)


def put(data: Any, path: tuple[str | int, ...], junk: Any) -> None:
    """Put junk in place of the value at a path, or drop the value."""
    for part in path[:-1]:
        data = data[part]
    if junk == "drop":
        del data[path[-1]]
    elif isinstance(data, dict) or path[-1] in range(len(data)):
        data[path[-1]] = copy.deepcopy(junk)


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.sampled_from(leaves(FULL)), JUNK | st.just("drop")), max_size=3))
def test_schema_and_loader_agree_about_any_values(edits: list[tuple[Any, Any]]) -> None:
    """JSON Schema counts 12.0 as whole, so no junk has such floats; else the two must agree."""
    data = copy.deepcopy(FULL)
    for path, junk in edits:
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an edit before took it away
            put(data, path, junk)
    document = read_document(data)
    errors = list(VALIDATOR.iter_errors(json.loads(json.dumps(data))))
    assert bool(document.findings) == bool(errors), (document.findings, errors)
    assert document.partial is not None
    for finding in document.findings:
        assert finding.fix
        assert str(finding).isprintable()


def test_main_writes_only_into_a_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json_schema.main([str(tmp_path)]) == 2
    assert "no specs folder" in capsys.readouterr().err
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/a.yaml").write_text(LEGAL, encoding="utf-8")
    assert json_schema.main([str(tmp_path)]) == 0
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {
        "specs/a.yaml",
        "docs/spec.md",
        "docs/spec.schema.json",
        "gptoss_builder/data/spec.schema.json",
        "gptoss_builder/data/specs/a.yaml",
    }
