"""Token shards: `.bin` files of raw token ids with a manifest, read memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gptoss_builder.errors import DataError
from gptoss_builder.files import new_directory
from gptoss_builder.train.artifact import read_json

MANIFEST = "manifest.json"
SCHEMA = "token_shards.schema.json"
SHARD_TOKENS = 2**27
"""Tokens of a full shard."""

Ids = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]


def smallest_dtype(vocab: int) -> str:
    """The narrowest type of the format that holds ids 0 … vocab − 1."""
    return next(
        name
        for name, top in (("uint8", 2**8), ("uint16", 2**16), ("uint32", 2**32))
        if vocab <= top
    )


def write_shards(
    directory: Path, documents: Iterable[NDArray[np.integer]], *, vocab: int, tokenizer: str
) -> int:
    """Write a stream of documents as shards with a manifest, whole or not at all.

    Args:
        directory: replaced if it is there.
        documents: ids of one document after the other; a shard can end within one.
        vocab: ids are 0 … vocab − 1; the narrowest type that holds them is used.
        tokenizer: what made them, as the manifest's schema says.

    Returns:
        Tokens written.

    Raises:
        DataError: an id is outside the vocabulary.
        OSError: the files cannot be written; what was at `directory` stays.
    """
    dtype = np.dtype(smallest_dtype(vocab)).newbyteorder("<")
    shards: list[dict[str, object]] = []
    with new_directory(directory) as fresh:
        for block in _blocks(documents, vocab, dtype):
            name = f"{len(shards):06d}.bin"
            data = block.tobytes()
            (fresh / name).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            shards.append({"file": name, "tokens": len(block), "sha256": digest})
        manifest = {
            "manifest": 1,
            "dtype": dtype.name,
            "vocab": vocab,
            "tokenizer": tokenizer,
            "shards": shards,
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return sum(int(str(shard["tokens"])) for shard in shards)


def open_shards(directory: Path) -> tuple[dict[str, object], list[tuple[str, Ids]]]:
    """The manifest and the memory-mapped shards, by name, in order.

    Raises:
        ArtifactError: there is no valid manifest.
        DataError: a file is missing or does not hold exactly the tokens that the manifest says,
            in its type: a file of another type or cut short is never read as something else.
    """
    manifest = read_json(directory / MANIFEST, SCHEMA)
    dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
    shards: list[tuple[str, Ids]] = []
    for entry in manifest["shards"]:
        path = directory / entry["file"]
        want = entry["tokens"] * dtype.itemsize
        try:
            have = path.stat().st_size
        except OSError as error:
            raise DataError(f"shard {path} cannot be read: {error.strerror}") from error
        if have != want:
            raise DataError(
                f"shard {path} has {have} bytes, but {entry['tokens']} tokens of {dtype.name} "
                f"are {want}; write the shards again"
            )
        ids = np.memmap(path, dtype=dtype, mode="r") if want else np.empty(0, dtype)
        shards.append((entry["file"], ids))
    return manifest, shards


def _blocks(
    documents: Iterable[NDArray[np.integer]], vocab: int, dtype: np.dtype[np.generic]
) -> Iterable[NDArray[np.generic]]:
    """Cut a stream of documents into arrays of `SHARD_TOKENS`; the last one may be shorter."""
    pending: list[NDArray[np.generic]] = []
    count = 0
    for number, document in enumerate(documents):
        if len(document) and not 0 <= int(document.min()) <= int(document.max()) < vocab:
            raise DataError(
                f"document {number} has ids {document.min()} … {document.max()}, outside the "
                f"vocabulary 0 … {vocab - 1}"
            )
        rest = document.astype(dtype)
        while count + len(rest) >= SHARD_TOKENS:
            cut = SHARD_TOKENS - count
            yield np.concatenate([*pending, rest[:cut]])
            rest, pending, count = rest[cut:], [], 0
        pending.append(rest)
        count += len(rest)
    if count:
        yield np.concatenate(pending)
