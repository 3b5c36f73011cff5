"""What the commands print: on terminals of any encoding, and when nobody reads it any more."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


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

    A training run goes on without its output.
    """
    streams = [cast(TextIO, _Unbroken(stream)) for stream in (sys.stdout, sys.stderr)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            yield
        finally:
            for stream in streams:
                stream.flush()


class _Unbroken:
    """A stream whose writes end nowhere once its pipe has no reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # what is still in the buffer goes there too, when Python ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
