"""Where data lie, from a spec's folder, from a build and from any working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gptoss_builder.build_directory import with_data_paths_from_here
from gptoss_builder.cli.build import main as build
from gptoss_builder.cli.built import read_build
from gptoss_builder.errors import InputError
from gptoss_builder.pipeline import make_plan
from gptoss_builder.spec.schema import DataSpec
from tests.cli.test_built import tiny_spec


def built_path(spec: Path) -> Path:
    """Where the data of a build made here lie."""
    assert build([str(spec), "--out", "out"]) == 0
    data = read_build(Path("out")).spec.data
    assert data is not None
    return Path(data.path).resolve()


def planned_path(spec: Path) -> Path:
    data = make_plan(spec).spec.data
    assert data is not None
    assert Path(data.path).is_absolute()
    return Path(data.path)


@pytest.mark.parametrize("path", ["bytes", "a b/ü", "~", "deep/../text", "../text"])
def test_a_build_and_a_plan_name_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    spec = tiny_spec(tmp_path / "specs", data={"path": path})
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    wanted = Path(os.path.normpath(tmp_path / "specs" / path))
    assert planned_path(Path("../specs/spec.yaml")) == wanted
    assert built_path(Path("../specs/spec.yaml")) == built_path(spec) == wanted


def test_data_above_a_linked_folder_of_specs_are_above_what_it_links_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_spec(tmp_path / "elsewhere" / "specs", data={"path": "../text"})
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "specs").symlink_to(tmp_path / "elsewhere" / "specs")
    monkeypatch.chdir(tmp_path / "work")
    spec = Path("specs/spec.yaml")
    assert built_path(spec) == planned_path(spec) == tmp_path / "elsewhere" / "text"


def test_a_file_named_bytes_stays_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_plan(tiny_spec(tmp_path)).spec
    for tokenizer, kept in (("./bytes", "./bytes"), ("bytes", "bytes")):
        data = DataSpec(path="text", tokenizer=tokenizer)
        moved = with_data_paths_from_here(spec.model_copy(update={"data": data}), Path())
        assert moved.data == DataSpec(path="text", tokenizer=kept)


def test_a_folder_whose_name_is_not_utf8_is_refused_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        spec = tiny_spec(Path("caf\udce9"), data={"path": "text"})
    except OSError:
        pytest.skip("this system has no such names")
    assert build([str(spec), "--out", "out"]) == 2
    assert r"caf\udce9/text is not UTF-8" in capsys.readouterr().err
    assert not Path("out").exists()
    with pytest.raises(InputError, match="is not UTF-8"):
        make_plan(spec)
