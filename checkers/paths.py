"""Which files a run looks at."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from gptoss_builder.errors import InputError

SPEC_SUFFIXES = (".yaml", ".yml")
SUFFIXES = (*SPEC_SUFFIXES, ".py")


def collect(paths: Iterable[str], exclude: Sequence[str] = ()) -> list[str]:
    """Every file to check: named files as they are, folders searched.

    In a folder every `.yaml` and `.yml` that is not hidden is a spec, and every `.py` is
    source. A named file is a spec unless it ends in `.py`. `-` stands for itself.

    Args:
        paths: files and folders, as the user named them.
        exclude: globs; each leaves out the paths that it matches, whole or by a part's name.

    Raises:
        InputError: a path is not there, or nothing is left to check.
    """
    found: list[str] = []
    for path in paths:
        if path == "-":
            found.append(path)
        elif Path(path).is_dir():
            found += _in_folder(path, exclude)
        elif Path(path).exists():
            found += [] if _excluded(path, exclude) else [path]
        else:
            raise InputError(f"{path}: there is no such file or folder")
    files = list(dict.fromkeys(found))
    if not files:
        raise InputError(f"no {', '.join(SUFFIXES)} file to check in {', '.join(paths)}")
    return files


def _in_folder(top: str, exclude: Sequence[str]) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(top, onerror=refuse):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not _excluded(str(Path(folder, name)), exclude)
        )
        for name in sorted(names):
            path = str(Path(folder, name))
            shown = not name.startswith(".") and name.endswith(SUFFIXES)
            if shown and not _excluded(path, exclude) and not _never_ends(path):
                yield path


def _never_ends(path: str) -> bool:
    """Whether reading would wait for a writer: a pipe, a socket, a device. A dead link is said."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode)


def _excluded(path: str, exclude: Sequence[str]) -> bool:
    shown = Path(path).as_posix()
    parts = Path(path).parts
    return any(
        fnmatch(shown, glob) or any(fnmatch(part, glob) for part in parts)
        for glob in (pattern.rstrip("/") for pattern in exclude)
    )
