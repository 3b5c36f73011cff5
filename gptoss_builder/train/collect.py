"""Collecting source code and documentation from folders into one folder of text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gptoss_builder.errors import DataError
from gptoss_builder.files import new_directory

SUFFIXES = frozenset(
    {".c", ".cc", ".cmake", ".cpp", ".cu", ".cuh", ".cxx", ".f90", ".go", ".h", ".hh", ".hpp"}
    | {".inc", ".ipp", ".java", ".jl", ".js", ".lua", ".md", ".pl", ".pm", ".pod", ".pxd", ".py"}
    | {".pyi", ".pyx", ".rb", ".rs", ".rst", ".s", ".sh", ".sql", ".swift", ".tcl", ".toml"}
    | {".ts", ".txt", ".vim"}
)
"""Source code and documentation, by the end of a file's name in lower case."""

MIN_BYTES, MAX_BYTES = 256, 2**20
"""Less is no document, more is a table or generated."""

MAX_LINE, MAX_MEAN_LINE = 1000, 100
"""Bytes of the longest line and of lines on average; what is minified or encoded has more."""

MARK = ".collected"
"""File that tells our folders from others; hidden, so it is no text of theirs."""


@dataclass(frozen=True)
class Collected:
    """What a collection came to."""

    files: int
    """Written."""
    size_bytes: int
    """Of the files written."""
    duplicates: int
    """Files left out because another has the same content."""
    refused: int
    """Files left out by size, encoding or line length."""


def collect(
    directory: Path,
    folders: Sequence[Path],
    *,
    progress: Callable[[str], None] = lambda folder: None,
) -> Collected:
    """Copy the source code and documentation below `folders` into `directory`.

    A file is named after the SHA-256 of its content. So equal files are one, and the order of
    names, which is that of training data, mixes all sources and does not depend on where they
    lay: the end that `data.holdout` holds out is a sample of everything. Links and hidden files
    and folders are left out.

    Args:
        directory: replaced if it is there, whole or not at all.
        folders: where to look.
        progress: called with each folder before it is read.

    Raises:
        DataError: a folder is not there, or none holds a file to take.
        OSError: `directory` cannot be written.
    """
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; name folders that hold text")
    names: set[str] = set()
    size = duplicates = refused = 0
    with new_directory(directory) as fresh:
        for folder in folders:
            progress(str(folder))
            for file in _candidates(folder):
                content = _read(file)
                if content is None or not is_text(content):
                    refused += 1
                    continue
                name = hashlib.sha256(content).hexdigest()[:32]
                if name in names:
                    duplicates += 1
                    continue
                names.add(name)
                size += len(content)
                place = fresh / name[:2]
                place.mkdir(exist_ok=True)
                (place / f"{name[2:]}{file.suffix.lower()}").write_bytes(content)
        if not names:
            raise DataError(
                f"no text in {', '.join(map(str, folders))}: a file must have {MIN_BYTES} to "
                f"{MAX_BYTES:,} bytes of UTF-8, no very long lines, and end in one of "
                f"{' '.join(sorted(SUFFIXES))}"
            )
        (fresh / MARK).write_text(f"{len(names)} files, {size} bytes\n", encoding="utf-8")
    return Collected(len(names), size, duplicates, refused)


def is_text(content: bytes) -> bool:
    r"""Whether a file's content is UTF-8 text of a fitting size that somebody wrote.

    >>> is_text(b"x = 1\n" * 100), is_text(b"x=1;" * 100), is_text(b"\xff\n" * 200)
    (True, False, False)
    """
    if not MIN_BYTES <= len(content) <= MAX_BYTES or b"\0" in content:
        return False
    lines = content.splitlines()
    if len(content) > MAX_MEAN_LINE * len(lines) or max(map(len, lines)) > MAX_LINE:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _candidates(folder: Path) -> Iterator[Path]:
    """Files below `folder` by suffix, in order of their paths."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(place, name)
            if not name.startswith(".") and file.suffix.lower() in SUFFIXES:
                yield file


def _read(file: Path) -> bytes | None:
    """The content; None if the file is not ours to read, gone, a link or of no fitting size."""
    try:
        if file.is_symlink() or not file.is_file():
            return None
        if not MIN_BYTES <= file.stat().st_size <= MAX_BYTES:
            return None
        return file.read_bytes()
    except OSError:
        return None
