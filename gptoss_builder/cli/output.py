"""What the commands print on terminals of any encoding."""

from __future__ import annotations

import io
import sys

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


def show_what_it_can() -> None:
    """Let standard output print `?` for what its encoding lacks, instead of failing.

    A model's sample holds any character, and a terminal may know ASCII only.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
