"""What the compiler said and made, kept between calls: one file an entry, whole or not used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """Figures as the compiling child printed them, and the machine code."""

    figures: dict[str, object]
    cubin: bytes


def default_folder() -> Path | None:
    """`$XDG_CACHE_HOME/gptoss-builder/kernels`, or None for a user without a home."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "gptoss-builder" / "kernels"


def read(folder: Path | None, key: str) -> Entry | None:
    """The entry, or None where there is none or a bit of it is wrong."""
    if folder is None:
        return None
    try:
        digest, _, content = (folder / f"{key}.kernel").read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return None
    figures, _, cubin = content.partition(b"\n")
    return Entry(json.loads(figures), cubin)


def write(folder: Path | None, key: str, entry: Entry) -> None:
    """Keep an entry; where that cannot be done the next call compiles again, and nothing else."""
    if folder is None:
        return
    content = json.dumps(entry.figures).encode() + b"\n" + entry.cubin
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            part = Path(scratch, key)
            part.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            part.replace(folder / f"{key}.kernel")
