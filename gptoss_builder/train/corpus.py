"""A corpus: text or token shards as one stream of token ids."""

from __future__ import annotations

import hashlib
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gptoss_builder.errors import DataError
from gptoss_builder.tokenizer import ByteTokenizer, JsonTokenizer
from gptoss_builder.train.shards import MANIFEST, Ids, open_shards

BATCH_BYTES = 2**24
"""Text that goes to a tokenizer at a time."""


class Corpus:
    """Token ids of one or more arrays, read as if they were one."""

    def __init__(self, name: str, parts: Sequence[tuple[str, Ids]], identity: str) -> None:
        self.name = name
        self.identity = identity
        """Changes when a token changes; a resumed run compares it."""
        self._parts = [(label, ids) for label, ids in parts if len(ids)]
        self._ends = list(accumulate(len(ids) for _, ids in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int, vocab: int) -> NDArray[np.int64]:
        """Ids of tokens start … stop − 1.

        Raises:
            DataError: an id is not below `vocab`; names the token.
        """
        pieces = []
        part = bisect_right(self._ends, start)
        at = start
        while at < stop:
            _, ids = self._parts[part]
            first = self._ends[part] - len(ids)
            piece = ids[at - first : stop - first]
            pieces.append(piece.astype(np.int64))
            at += len(piece)
            part += 1
        tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        if len(tokens) and int(tokens.max()) >= vocab:
            self._refuse(start + int(tokens.argmax()), int(tokens.max()), vocab)
        return tokens

    def _refuse(self, index: int, id_: int, vocab: int) -> None:
        part = bisect_right(self._ends, index)
        label, ids = self._parts[part]
        offset = index - (self._ends[part] - len(ids))
        raise DataError(
            f"token {offset} of {self.name}/{label} has id {id_}, but model.vocab is {vocab} "
            f"(ids 0 … {vocab - 1}); raise model.vocab or prepare the data with the spec's "
            "own tokenizer"
        )


def open_corpus(path: Path, tokenizer: ByteTokenizer | JsonTokenizer, vocab: int) -> Corpus:
    """Open `data.path`: a folder with a manifest is token shards, anything else UTF-8 text.

    Text is tokenized here, each time; for more than a few hundred megabytes write shards once
    with `gptoss-prepare`.

    Raises:
        DataError: nothing is there, a file is not UTF-8 text, or the ids cannot fit `vocab`.
        ArtifactError: the manifest is not valid.
    """
    if not path.exists():
        start = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise DataError(
            f"data.path {path} is not there{start}; give a text file, a folder of text files or a "
            "folder of token shards, or fill it with the source of Python's standard library: "
            f"gptoss-prepare stdlib {shlex.quote(str(path))}"
        )
    if (path / MANIFEST).is_file():
        return _open_token_shards(path, tokenizer, vocab)
    if tokenizer.size > vocab:
        raise DataError(
            f"tokenizer {tokenizer.name} has ids 0 … {tokenizer.size - 1}, but model.vocab is "
            f"{vocab}; set model.vocab to at least {tokenizer.size}"
        )
    ids = np.concatenate([np.empty(0, np.uint8), *tokenize(text_files(path), tokenizer)])
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    return Corpus(str(path.parent), [(path.name, ids)], f"sha256:{digest}")


def text_files(path: Path) -> list[Path]:
    """The file itself, or every file below a folder that is not hidden, in order of its name.

    Raises:
        DataError: the folder has none.
    """
    if path.is_file():
        return [path]
    found = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not found:
        raise DataError(f"folder {path} holds no file; put text files there")
    return sorted(found, key=lambda file: file.relative_to(path).as_posix())


def tokenize(
    files: Iterable[Path], tokenizer: ByteTokenizer | JsonTokenizer
) -> Iterator[NDArray[np.uint8] | NDArray[np.uint32]]:
    """Ids of one file after the other, each closed by the tokenizer's end token if it has one.

    Raises:
        DataError: a file cannot be read or is not UTF-8 text; names the byte.
    """
    if isinstance(tokenizer, ByteTokenizer):
        for file in files:
            yield np.frombuffer(read_text(file).encode() + b"\0", dtype=np.uint8)
        return
    end = [] if tokenizer.end is None else [tokenizer.end]
    for texts in _batches(files):
        for ids in tokenizer.encode_all(texts):
            yield np.array(ids + end, dtype=np.uint32)


def _batches(files: Iterable[Path]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for file in files:
        text = read_text(file)
        batch.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_text(file: Path) -> str:
    """The text of a file.

    Raises:
        DataError: it cannot be read or is not UTF-8; names the byte.
    """
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text (byte {error.start}); convert it, move it out of the "
            "data folder, or prepare token shards"
        ) from error


def _open_token_shards(path: Path, tokenizer: ByteTokenizer | JsonTokenizer, vocab: int) -> Corpus:
    manifest, parts = open_shards(path)
    made_with, size = str(manifest["tokenizer"]), int(str(manifest["vocab"]))
    if made_with not in {"unknown", tokenizer.identity}:
        raise DataError(
            f"{path} was made with another tokenizer ({made_with}) than data.tokenizer "
            f"{tokenizer.name} ({tokenizer.identity}); name the one that made it"
        )
    if size > vocab:
        raise DataError(
            f"{path} has ids 0 … {size - 1}, but model.vocab is {vocab}; set model.vocab to at "
            f"least {size}"
        )
    digest = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
    return Corpus(str(path), parts, f"manifest-sha256:{digest}")
