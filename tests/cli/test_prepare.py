"""Collecting text and training a vocabulary, as a user runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gptoss_builder.cli import prepare
from gptoss_builder.tokenizer import load_tokenizer
from gptoss_builder.train.collect import MAX_BYTES, MAX_LINE, MIN_BYTES, collect, is_text
from gptoss_builder.train.corpus import open_corpus, text_files
from gptoss_builder.train.vocabulary import END

CODE = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(40))
PROSE = "The same sentence, é included, said once more.\n" * 20


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two texts, a copy of one, and files that are no text of ours."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sources"
    (folder / "deep" / ".hidden").mkdir(parents=True)
    (folder / "a.py").write_text(CODE)
    (folder / "deep" / "README.MD").write_text(PROSE, encoding="utf-8")
    (folder / "deep" / "copy.py").write_text(CODE)
    (folder / "deep" / ".hidden" / "b.py").write_text(CODE + "hidden")
    (folder / "link.py").symlink_to(folder / "deep" / "README.MD")
    (folder / "image.png").write_text(CODE + "not by its name")
    (folder / "short.py").write_text("x = 1\n")
    (folder / "latin.py").write_bytes(CODE.encode() + b"# \xe9\n")
    (folder / "minified.js").write_text("f(x);" * 200)
    return folder


def test_only_text_is_collected_and_each_content_once(sources: Path, capsys) -> None:
    assert prepare.main(["collect", "out", "sources"]) == 0
    out = capsys.readouterr().out
    assert "out: 2 files, 0.0 MB; left out 1 duplicates and 4 that are not text" in out
    found = {file.read_text(encoding="utf-8"): file.suffix for file in text_files(Path("out"))}
    assert found == {CODE: ".py", PROSE: ".md"}


def test_the_collection_does_not_depend_on_where_files_lay(sources: Path) -> None:
    collect(Path("one"), [sources])
    (sources / "a.py").unlink()
    collect(Path("two"), [sources / "deep"])

    def names(out: str) -> list[str]:
        return [file.relative_to(out).as_posix() for file in text_files(Path(out))]

    assert names("one") == names("two")


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        (b"x\n" * (MIN_BYTES // 2), True),
        (b"x\n" * (MIN_BYTES // 2 - 1), False),
        (b"x\n" * (MAX_BYTES // 2), True),
        (b"x\n" * (MAX_BYTES // 2) + b"\n", False),
        (b"x" * MAX_LINE + b"\ny" * 200, True),
        (b"x" * (MAX_LINE + 1) + b"\ny" * 200, False),
        (b"x" * 100 + b"\n", False),
        ((b"x" * 99 + b"\n") * 5, True),
        ((b"x" * 100 + b"\n") * 5, False),
        (b"x\n" * 200 + b"\0", False),
    ],
)
def test_sizes_and_lines_at_their_limits(content: bytes, *, taken: bool) -> None:
    assert is_text(content) == taken


def test_collecting_says_what_is_wrong_and_writes_nothing(sources: Path, capsys) -> None:
    (sources / "empty").mkdir()
    for arguments, message in (
        (["out", "nowhere"], "nowhere is not a folder"),
        (["out", "sources/empty"], "no text in sources/empty: a file must have 256 to"),
        (["sources/out", "sources"], "sources/out lies in sources"),
        (["sources/deep", "sources/empty"], "sources/deep holds something else"),
    ):
        assert prepare.main(["collect", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert sorted(entry.name for entry in Path().iterdir()) == ["sources"]
    assert prepare.main(["collect", "out", "sources"]) == 0
    assert prepare.main(["collect", "out", "sources/deep"]) == 0  # ours is replaced
    inside = next(entry for entry in Path("out").iterdir() if entry.is_dir())
    for folder in (str(inside), "out"):
        assert prepare.main(["collect", "out", "sources", folder]) == 2
        assert inside.is_dir()


def test_a_vocabulary_is_trained_and_gives_text_back(sources: Path, capsys) -> None:
    assert prepare.main(["collect", "text", "sources"]) == 0
    assert prepare.main(["bpe", "text", "one.json", "--vocab", "300"]) == 0
    assert "one.json: vocabulary 300; learned from 0.0 MB of text" in capsys.readouterr().out
    tokenizer = load_tokenizer("one.json")
    assert (tokenizer.size, tokenizer.end, tokenizer.decode([0])) == (300, 0, END)
    for text in (CODE, PROSE, "日本\x01 \t\r\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(CODE)) < 0.6 * len(CODE)
    assert len(tokenizer.encode(END)) == 1
    assert prepare.main(["bpe", "text", "two.json", "--vocab", "300"]) == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()


def test_collected_text_its_vocabulary_and_shards_fit_each_other(sources: Path, capsys) -> None:
    assert prepare.main(["collect", "text", "sources"]) == 0
    assert prepare.main(["bpe", "text", "t.json", "--vocab", "280"]) == 0
    assert prepare.main(["shards", "text", "shards", "--tokenizer", "t.json"]) == 0
    tokenizer = load_tokenizer("t.json")
    corpus = open_corpus(Path("shards"), tokenizer, 280)
    ids = corpus.read(0, len(corpus), 280).tolist()
    text = "".join(f.read_text(encoding="utf-8") + END for f in text_files(Path("text")))
    assert tokenizer.decode(ids) == text


def test_a_text_with_too_few_pairs_gives_a_smaller_vocabulary(sources: Path, capsys) -> None:
    Path("short.txt").write_text("ab ab cd")
    assert prepare.main(["bpe", "short.txt", "t.json", "--vocab", "999"]) == 0
    assert "vocabulary 258 of 999: no more pair repeats" in capsys.readouterr().out


def test_a_vocabulary_can_be_learned_from_the_first_text_only(sources: Path) -> None:
    Path("text").mkdir()
    Path("text/1.txt").write_text("ab abc " * 150_000)
    Path("text/2.txt").write_text("zyzy " * 1000)
    assert prepare.main(["bpe", "text", "all.json", "--vocab", "999"]) == 0
    assert prepare.main(["bpe", "text", "first.json", "--vocab", "999", "--max-mb", "1"]) == 0
    words = [json.loads(Path(f).read_text())["model"]["vocab"] for f in ("all.json", "first.json")]
    assert ["zy" in each for each in words] == [True, False]


def test_training_a_vocabulary_says_what_is_wrong(
    sources: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in (
        (["nowhere", "t.json", "--vocab", "300"], "nowhere is not there"),
        (["sources/a.py", "t.json", "--vocab", "256"], "give at least 257"),
        (["sources/a.py", "t.json", "--vocab", str(2**24 + 1)], "give at most 16777216"),
        (["sources/a.py", "sources", "--vocab", "300"], "sources is a folder"),
        (["sources/a.py", "no/t.json", "--vocab", "300"], "there is no folder no"),
        (["sources/latin.py", "t.json", "--vocab", "300"], "latin.py is not UTF-8 text (byte"),
    ):
        assert prepare.main(["bpe", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        prepare.main(["bpe", "sources/a.py", "t.json", "--vocab", "0"])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert prepare.main(["bpe", "sources/a.py", "t.json", "--vocab", "300"]) == 2
    assert "pip install '.[tokenizers]'" in capsys.readouterr().err
    assert not Path("t.json").exists()


def test_ctrl_c_leaves_nothing_behind(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupt(content: bytes) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("gptoss_builder.train.collect.is_text", interrupt)
    assert prepare.main(["collect", "out", "sources"]) == 130
    assert capsys.readouterr().err.endswith("prepare: interrupted\n")
    assert sorted(entry.name for entry in Path().iterdir()) == ["sources"]
