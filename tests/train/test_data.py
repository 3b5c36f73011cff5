"""Corpora, token shards, the order of sequences, and what is refused."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from gptoss_builder.errors import ArtifactError, DataError, InputError
from gptoss_builder.tokenizer import ByteTokenizer, load_tokenizer
from gptoss_builder.train.corpus import Corpus, open_corpus
from gptoss_builder.train.data import CorpusData, Loader
from gptoss_builder.train.loss import IGNORE
from gptoss_builder.train.shards import open_shards, write_shards


def _corpus(tokens: int, vocab: int = 256) -> Corpus:
    ids = (np.arange(tokens) % vocab).astype(np.uint16)
    third = tokens // 3
    return Corpus("x", [("a", ids[:third]), ("b", ids[third:])], "id")


def _data(tokens: int, context: int = 4, holdout: float = 0.25, seed: int = 0) -> CorpusData:
    return CorpusData(_corpus(tokens), context=context, holdout=holdout, seed=seed, vocab=256)


def _loader(data: CorpusData, accumulate: int = 2, micro_batch: int = 3) -> Loader:
    return Loader(
        data,
        accumulate=accumulate,
        micro_batch=micro_batch,
        context=4,
        vocab=256,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("tokens", [0, 1, 63, 64])
def test_fewer_tokens_than_a_sequence_and_its_label_are_refused(tokens: int) -> None:
    corpus = Corpus("x", [("a", np.zeros(tokens, np.uint8))], "id")
    with pytest.raises(DataError, match=rf"has {tokens} tokens.*needs 65"):
        CorpusData(corpus, context=64, holdout=1e-6, seed=0, vocab=2)


@pytest.mark.parametrize(("train_tokens", "sequences"), [(5, 1), (6, 1), (8, 1), (9, 2)])
def test_a_sequence_and_its_label_are_enough_to_train_on(train_tokens: int, sequences: int) -> None:
    tokens = next(n for n in range(100) if n - int(n * 0.4) == train_tokens)
    data = _data(tokens, holdout=0.4)
    assert data.sequences == sequences
    starts = sorted(int(data.sequence(position)[0][0]) for position in range(sequences))
    assert starts == [4 * k for k in range(sequences)]
    inputs, labels = data.sequence(0)
    assert (labels == inputs + 1).all()


def test_too_short_a_held_out_part_is_refused() -> None:
    with pytest.raises(DataError, match="holds out 1, but a label needs at least 2"):
        _data(12, holdout=0.1)


def test_every_epoch_has_each_sequence_once_in_another_order() -> None:
    data = _data(200)
    epochs = [
        [int(data.sequence(epoch * data.sequences + k)[0][0]) for k in range(data.sequences)]
        for epoch in range(3)
    ]
    assert all(sorted(epoch) == [4 * k for k in range(data.sequences)] for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert int(_data(200, seed=1).sequence(0)[0][0]) != epochs[0][0]


def test_the_order_is_the_same_in_every_run_and_version() -> None:
    data = _data(100)
    assert [int(data.sequence(k)[0][0]) // 4 for k in range(6)] == ORDER


ORDER = [12, 2, 3, 14, 17, 16]
"""RandomState([0, 0]).permutation(18)[:6]; a change would break every resumed run."""


def test_held_out_sequences_cover_exactly_the_last_tokens() -> None:
    data = _data(100, holdout=0.25)  # tokens 75 … 99: 24 labels in 6 full sequences
    labels = np.concatenate([data.held_out(k)[1] for k in range(data.held_out_count)])
    assert labels[labels != IGNORE].tolist() == list(range(76, 100))
    data = _data(98, holdout=0.24)  # tokens 75 … 97: 22 labels, the last sequence is padded
    labels = np.concatenate([data.held_out(k)[1] for k in range(data.held_out_count)])
    assert labels[labels != IGNORE].tolist() == list(range(76, 98))
    assert len(labels) == 24


def test_steps_follow_positions_whatever_step_they_start_at() -> None:
    data = _data(100)
    whole = list(_loader(data).steps(0, 9))  # 54 sequences of 18: into the third epoch
    for start in (1, 4, 8):
        late = list(_loader(_data(100)).steps(6 * start, 9 - start))
        for ours, theirs in zip(late, whole[start:], strict=True):
            assert torch.equal(ours.tokens_ABT, theirs.tokens_ABT)
            assert torch.equal(ours.labels_ABT, theirs.labels_ABT)
    position = 0
    for step in whole:
        assert step.valid == 24
        for row in step.tokens_ABT.flatten(0, 1):
            assert row.tolist() == data.sequence(position)[0].tolist()
            position += 1


def test_the_next_step_is_assembled_while_this_one_computes_and_none_beyond() -> None:
    class Watched:
        identity = "watched"
        held_out_count = 0

        def __init__(self) -> None:
            self.asked: list[int] = []
            self.threads: set[int] = set()
            self.second_step = threading.Event()

        def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
            self.asked.append(position)
            self.threads.add(threading.get_ident())
            if position == 2 * 6 - 1:
                self.second_step.set()
            return np.zeros(4, np.int64), np.zeros(4, np.int64)

    data = Watched()
    steps = _loader(data).steps(0, 3)
    next(steps)  # the first step computes
    assert data.second_step.wait(timeout=30)
    assert data.asked == list(range(12))
    assert len(list(steps)) == 2
    assert data.asked == list(range(18))
    assert threading.get_ident() not in data.threads


def test_held_out_batches_keep_the_shape_and_the_budget() -> None:
    batches = list(_loader(_data(98, holdout=0.24)).held_out(tokens=17))
    assert [batch.tokens_ABT.shape for batch in batches] == [(1, 3, 4), (1, 3, 4)]
    assert [batch.valid for batch in batches] == [12, 4]


@pytest.mark.parametrize("bad", [-1, 256, 2**31])
@pytest.mark.parametrize("kind", ["token", "label"])
def test_an_id_outside_the_vocabulary_is_refused_with_its_place(bad: int, kind: str) -> None:
    class Bad:
        identity = "bad"
        held_out_count = 0

        def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
            pair = np.zeros(4, np.int64), np.zeros(4, np.int64)
            if position == 7:
                pair[kind == "label"][2] = bad
            return pair

    with pytest.raises(DataError, match=rf"training 7 sequence, {kind} 2: id {bad} is outside"):
        list(_loader(Bad()).steps(0, 5))


def test_a_sequence_of_the_wrong_length_is_refused() -> None:
    data = CorpusData(_corpus(100), context=5, holdout=0.25, seed=0, vocab=256)
    with pytest.raises(DataError, match=r"tokens \(5,\).*must be \(4,\)"):
        next(_loader(data).steps(0, 1))


def test_a_corpus_names_the_part_and_token_that_is_outside_the_vocabulary() -> None:
    corpus = Corpus("data", [("a", np.zeros(9, np.uint8)), ("b", np.array([1, 70], "u1"))], "id")
    with pytest.raises(DataError, match=r"token 1 of data/b has id 70, but model\.vocab is 70"):
        corpus.read(3, 11, 70)
    assert corpus.read(3, 10, 70).tolist() == [0] * 6 + [1]
    assert corpus.read(0, 11, 71)[-1] == 70


# Text


def test_a_folder_of_text_is_read_in_the_order_of_names_without_hidden_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in (("b.txt", "zwei"), ("a.txt", "één"), ("sub/c", "3"), (".git", "no")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = open_corpus(tmp_path, ByteTokenizer(), 256)
    raw = bytes(corpus.read(0, len(corpus), 256).astype(np.uint8))
    assert raw == "één\0zwei\0003\0".encode()


def test_identity_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    ids = []
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / name).write_text(text)
        ids.append(open_corpus(tmp_path / name, ByteTokenizer(), 256).identity)
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("content", [b"caf\xe9", "x".encode("utf-16"), b"\x93NUMPY\x01\x00"])
def test_what_is_not_utf8_is_refused_with_the_byte(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy is not UTF-8 text \(byte \d\)"):
        open_corpus(tmp_path, ByteTokenizer(), 256)


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is not there"):
        open_corpus(tmp_path / "nowhere", ByteTokenizer(), 256)
    with pytest.raises(DataError, match="holds no file"):
        open_corpus(tmp_path, ByteTokenizer(), 256)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(DataError, match=r"set model\.vocab to at least 256"):
        open_corpus(tmp_path / "a", ByteTokenizer(), 255)


# tokenizer.json


def _tokenizer_json(path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "ein": 1, "wort": 2, "</s>": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(path))
    return path


def test_a_tokenizer_json_reads_text_and_ends_documents(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(_tokenizer_json(tmp_path / "t.json")))
    text = tmp_path / "text"
    text.mkdir()
    (text / "a").write_text("ein wort")
    (text / "b").write_text("wort neu")
    corpus = open_corpus(text, tokenizer, 4)
    assert corpus.read(0, len(corpus), 4).tolist() == [1, 2, 3, 2, 0, 3]
    assert tokenizer.encode("wort ein") == [2, 1]
    assert tokenizer.decode([1, 2]) == "ein wort"


def test_special_tokens_are_not_added_and_are_shown(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = _tokenizer_json(tmp_path / "t.json")
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.add_special_tokens(["</s>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="</s> $A </s>", special_tokens=[("</s>", 3)]
    )
    backend.save(str(path))
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.encode("ein") == [1]
    assert tokenizer.encode_all(["ein", ""]) == [[1], []]
    assert tokenizer.decode([1, 3]) == "ein </s>"


def test_a_tokenizer_that_asks_to_cut_and_pad_documents_does_neither(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = _tokenizer_json(tmp_path / "t.json")
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(1)
    backend.enable_padding(length=3)
    backend.save(str(path))
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.encode("wort ein") == [2, 1]
    assert tokenizer.encode_all(["wort ein", "", "ein"]) == [[2, 1], [], [1]]


def test_a_tokenizer_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.json is not there"):
        load_tokenizer(str(tmp_path / "t.json"))
    for content in (b"{", b"{}", b"\xff", b"[]", b"[" * 100_000):
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(ArtifactError, match=r"t\.json is not a tokenizer\.json"):
            load_tokenizer(str(tmp_path / "t.json"))


def test_bytes_survive_the_tokenizer_and_strange_ids_do_not_stop_it() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve ✓")) == "naïve ✓"
    assert tokenizer.decode([104, 300, 105, 0xFF]) == "h\ufffdi\ufffd"


# Shards


def _write(directory: Path, ids: list[int], vocab: int) -> Path:
    write_shards(directory, [np.array(ids)], vocab=vocab, tokenizer="unknown")
    return directory


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_ids_never_wrap(tmp_path: Path, vocab: int, dtype: str) -> None:
    directory = _write(tmp_path / "d", [0, vocab - 1, 3], vocab)
    assert json.loads((directory / "manifest.json").read_text())["dtype"] == dtype
    raw = np.frombuffer((directory / "000000.bin").read_bytes(), f"<{np.dtype(dtype).str[1:]}")
    assert raw.tolist() == [0, vocab - 1, 3]
    corpus = open_corpus(directory, ByteTokenizer(), vocab)
    assert corpus.read(0, 3, vocab).tolist() == [0, vocab - 1, 3]


def test_documents_are_cut_into_shards_without_loss(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("gptoss_builder.train.shards.SHARD_TOKENS", 10)
    documents = [np.arange(k, k + n) for k, n in ((0, 7), (7, 0), (7, 36), (43, 2))]
    assert write_shards(tmp_path / "d", documents, vocab=45, tokenizer="unknown") == 45
    _, parts = open_shards(tmp_path / "d")
    assert [len(ids) for _, ids in parts] == [10, 10, 10, 10, 5]
    assert np.concatenate([ids for _, ids in parts]).tolist() == list(range(45))


@pytest.mark.parametrize("ids", [[0, 5], [-1]])
def test_writing_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(DataError, match="outside the vocabulary 0 … 4"):
        _write(tmp_path / "d", ids, 5)
    assert not list(tmp_path.iterdir())


def test_a_shard_of_another_size_or_type_is_refused(tmp_path: Path) -> None:
    directory = _write(tmp_path / "d", list(range(5)), 300)
    shard = directory / "000000.bin"
    content = shard.read_bytes()
    for wrong in (content[:-1], content + b"\0", content[:5], b""):
        shard.write_bytes(wrong)
        with pytest.raises(DataError, match=rf"has {len(wrong)} bytes, but 5 tokens of uint16"):
            open_corpus(directory, ByteTokenizer(), 300)
    shard.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        open_corpus(directory, ByteTokenizer(), 300)


def test_shards_of_a_larger_vocabulary_or_another_tokenizer_are_refused(tmp_path: Path) -> None:
    directory = _write(tmp_path / "d", [1], 300)
    with pytest.raises(DataError, match=r"ids 0 … 299, but model\.vocab is 299"):
        open_corpus(directory, ByteTokenizer(), 299)
    write_shards(directory, [np.array([1])], vocab=300, tokenizer="sha256:" + "0" * 64)
    with pytest.raises(DataError, match="made with another tokenizer"):
        open_corpus(directory, ByteTokenizer(), 300)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"dtype": "int64"}, "$.dtype"),
        ({"dtype": "object"}, "$.dtype"),
        ({"manifest": 2}, "$.manifest"),
        ({"extra": 1}, "$"),
        ({"shards": [{"file": "../x.bin", "tokens": 1, "sha256": "0" * 64}]}, "$.shards[0].file"),
        ({"shards": []}, "$.shards"),
    ],
)
def test_a_manifest_that_breaks_the_schema_is_refused(
    tmp_path: Path, change: dict[str, object], place: str
) -> None:
    directory = _write(tmp_path / "d", [1], 5)
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ArtifactError, match=re.escape(f"manifest.json, {place}: ")):
        open_corpus(directory, ByteTokenizer(), 256)
