"""Types of the benchmarks' command-line arguments. Imports no torch."""

from __future__ import annotations

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: it is none.

    >>> positive("20")
    20
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def new_file(text: str) -> Path:
    """A file to write, in a folder that is there: refused before the measurement, not after it.

    Raises:
        argparse.ArgumentTypeError: the folder is not there, or the path is a folder.
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name the file to write")
    return path
