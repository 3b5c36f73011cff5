"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to a temporary name beside `path`, then rename it.

    Raises:
        OSError: the folder is not there, is not writable, or the disk is full; `path` then
            keeps its old content and no temporary file stays.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; it takes the place of `path` when the block ends well.

    A folder that is at `path` already is replaced whole; whether it may be is the caller's to
    check first. If anything raises, `path` is as it was and nothing else stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fresh.chmod(0o755)
        yield fresh
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            try:
                path.rename(old / path.name)
                fresh.rename(path)
            except BaseException:
                if (old / path.name).exists():
                    (old / path.name).rename(path)
                old.rmdir()
                raise
            shutil.rmtree(old)
        else:
            fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
