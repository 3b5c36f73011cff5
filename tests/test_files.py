"""Files and folders are replaced whole, or stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptoss_builder.files import new_directory, write_text


def _old(folder: Path) -> Path:
    path = folder / "kept"
    path.mkdir()
    (path / "old").write_text("old")
    return path


def test_a_folder_is_replaced_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    path = _old(tmp_path)
    with new_directory(path) as fresh:
        (fresh / "new").write_text("new")
        assert (path / "old").is_file()
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_filling_leaves_the_old_folder(tmp_path: Path) -> None:
    path = _old(tmp_path)
    with pytest.raises(IsADirectoryError), new_directory(path) as fresh:
        fresh.write_text("new")
    assert (path / "old").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    path = _old(tmp_path)
    rename, calls = Path.rename, []

    def rename_or_fail(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == failing:
            raise OSError("busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_or_fail)
    with pytest.raises(OSError, match="busy"), new_directory(path) as fresh:
        (fresh / "new").write_text("new")
    assert (path / "old").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
