"""What can be said of training data by looking at it, without reading it whole.

Data that is not there is no fault of a spec: checks run on machines that have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptoss_builder.spec.schema import Spec

MANIFEST = "manifest.json"
MOST_FILES = 20_000
"""Files of a folder that are counted; a larger one is left to the trainer."""
MOST_BYTES = 64 * 2**20
"""Largest JSON file that is read."""
DTYPE_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4}
"""Types of token shards."""


@dataclass(frozen=True)
class Shards:
    """A folder of token shards, as its manifest describes it."""

    dtype: str
    vocab: int
    tokens: int
    wrong: tuple[str, ...]
    """Shards that are missing or not of the size that the manifest says, in words."""


def data_path(spec: Spec, directory: Path) -> Path | None:
    """Where the data lies, if it is there."""
    if spec.data is None:
        return None
    path = directory / spec.data.path
    return path if _exists(path) else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def data_is_here(spec: Spec, directory: Path) -> bool:
    """Whether everything that the spec names as data, if anything, is there to be looked at."""
    if spec.data is None:
        return True
    if data_path(spec, directory) is None:
        return False
    return spec.data.tokenizer == "bytes" or _exists(directory / spec.data.tokenizer)


def read_json(path: Path) -> Mapping[str, Any] | None:
    """An object in a JSON file of a sensible size; None for anything else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def has_manifest(path: Path) -> bool:
    """Whether a folder is one of token shards."""
    return (path / MANIFEST).is_file()


def read_shards(path: Path) -> Shards | None:
    """The shards of a folder; None where the manifest is not one."""
    manifest = read_json(path / MANIFEST)
    if manifest is None:
        return None
    dtype, vocab, entries = (manifest.get(key) for key in ("dtype", "vocab", "shards"))
    if dtype not in DTYPE_BYTES or not isinstance(vocab, int) or not isinstance(entries, list):
        return None
    tokens, wrong = 0, []
    for entry in entries:
        if not isinstance(entry, dict):
            return None
        name, count = entry.get("file"), entry.get("tokens")
        if not isinstance(name, str) or not isinstance(count, int) or Path(name).name != name:
            return None
        tokens += count
        want = count * DTYPE_BYTES[dtype]
        try:
            have = (path / name).stat().st_size
        except (OSError, ValueError):
            wrong.append(f"{name} is not there")
            continue
        if have != want:
            wrong.append(f"{name} has {have} bytes, not {want}")
    return Shards(dtype, vocab, tokens, tuple(wrong))


def count_tokens(spec: Spec, directory: Path) -> int | None:
    """Tokens of the data: exact for shards and for bytes, None where it takes a tokenizer."""
    path = data_path(spec, directory)
    if path is None or spec.data is None:
        return None
    if has_manifest(path):
        shards = read_shards(path)
        return shards.tokens if shards is not None else None
    if spec.data.tokenizer != "bytes":
        return None
    sizes = _sizes(path)
    # Byte 0 ends each document.
    return sum(sizes) + len(sizes) if sizes is not None else None


def _sizes(path: Path) -> list[int] | None:
    try:
        if path.is_file():
            return [path.stat().st_size]
        sizes: list[int] = []
        for file in path.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if not hidden and file.is_file():
                sizes.append(file.stat().st_size)
            if len(sizes) > MOST_FILES:
                return None
    except OSError:
        return None
    return sizes


def tokenizer_size(spec: Spec, directory: Path) -> int | None:
    """One more than the largest id of a tokenizer.json; None where there is none to read."""
    if spec.data is None or spec.data.tokenizer == "bytes":
        return None
    content = read_json(directory / spec.data.tokenizer)
    if content is None:
        return None
    ids: list[int] = []
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids += [value for value in vocabulary.values() if isinstance(value, int)]
    elif isinstance(vocabulary, list):
        ids.append(len(vocabulary) - 1)
    added = content.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            ids.append(entry["id"])
    return max(ids) + 1 if ids else None
