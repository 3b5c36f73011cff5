"""How every command runs: what it prints anywhere, and the exit code of what goes wrong."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from gptoss_builder import __version__
from gptoss_builder.cli.start import INTERRUPTED
from gptoss_builder.errors import GptossError


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a command `--version`."""
    version = f"gptoss-builder {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")


def run_command(name: str, body: Callable[[], int], *, lasting: bool = False) -> int:
    """Run the body of a command, its command line included.

    Standard output prints `?` for what its encoding lacks: a model's sample holds any character,
    and a terminal may know ASCII only. What is printed into a pipe that nobody reads any more
    (`| head`) is dropped, so a training run goes on without its output; so is what cannot be
    written to standard error. Streams that the shell has closed (`>&-`), for which Python has
    None, print nothing.

    Args:
        name: of the command, before its errors.
        body: gives the exit code.
        lasting: what it does is worth more than what it prints, so it goes on where standard output
            cannot be written (a disk is full), and says so on standard error.

    Returns:
        The body's exit code; that of its error, which is one line on standard error: 1 for an
        OSError, 130 for Ctrl-C.

    Raises:
        SystemExit: the command line ends the command; or with 1, where only at the end it shows
            that standard output cannot be written: a disk is full.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")

    def lost(reason: str) -> None:
        message = f"the output was not written: {reason}"
        if not lasting:
            raise GptossError(message)
        print(f"{name}: {message}; it goes on without", file=sys.stderr)

    out, errors = _Unbroken(sys.stdout, lost), _Unbroken(sys.stderr, lambda _: None)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
        try:
            return _met(name, body)
        finally:
            unwritten = _met(name, out.flush)
            errors.flush()
            if unwritten:
                raise SystemExit(unwritten)


def _met(name: str, body: Callable[[], int | None]) -> int:
    try:
        return body() or 0
    except KeyboardInterrupt:
        message, code = "interrupted", INTERRUPTED
    except GptossError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        message, code = str(error), GptossError.exit_code
    print(f"{name}: {message}", file=sys.stderr)
    return code


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


class _Unbroken:
    """A stream whose writes end nowhere once one has failed; `lost` is told why.

    Not so of a pipe that has no reader any more: nobody misses anything.
    """

    def __init__(self, stream: TextIO, lost: Callable[[str], None]) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> int:
        with self._kept():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # with what is still in the buffer
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                self._lost(error.strerror or str(error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
