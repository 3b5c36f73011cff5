"""What the commands print: on terminals of any encoding, and when nobody reads it any more."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from gptoss_builder import __version__
from gptoss_builder.cli.start import INTERRUPTED as INTERRUPTED  # noqa: PLC0414  # for the commands
from gptoss_builder.errors import GptossError


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a command `--version`."""
    version = f"gptoss-builder {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")


def show_what_it_can() -> None:
    """Let standard output print `?` for what its encoding lacks, instead of failing.

    A model's sample holds any character, and a terminal may know ASCII only. Streams that the
    shell has closed (`>&-`), for which Python has None, print nothing.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


@contextmanager
def unread_output_is_no_failure() -> Iterator[None]:
    """Within it, what is printed into a pipe that nobody reads any more (`| head`) is dropped.

    A training run goes on without its output. Of standard error everything is dropped that
    cannot be written.

    Raises:
        GptossError: standard output cannot be written: a disk is full.
        SystemExit: with 1, where that shows only at the end.
    """
    out, errors = _Unbroken(sys.stdout), _Unbroken(sys.stderr, needed=False)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
        try:
            yield
        finally:
            _end(out)
            errors.flush()


def _end(out: _Unbroken) -> None:
    try:
        out.flush()
    except GptossError as error:
        print(f"gptoss-builder: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def drop(stream: TextIO) -> None:
    """Let what is printed from now on, and what is still in the buffer, end nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Unbroken:
    """A stream whose writes end nowhere once its pipe has no reader."""

    def __init__(self, stream: TextIO, *, needed: bool = True) -> None:
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        with self._met():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._met():
            self._stream.flush()

    @contextmanager
    def _met(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            drop(self._stream)
            if self._needed and not isinstance(error, BrokenPipeError):
                raise unwritten(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unwritten(error: OSError) -> GptossError:
    """Standard output cannot be written: a disk is full."""
    return GptossError(f"the output was not written: {error.strerror}")
