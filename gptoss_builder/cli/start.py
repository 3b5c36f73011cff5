"""What the console scripts call: so little that Ctrl-C during a command's imports is met too."""

from __future__ import annotations

from importlib import import_module

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


def build() -> int:
    """gptoss-build."""
    return _start("build")


def check() -> int:
    """gptoss-check."""
    return _start("check")


def train() -> int:
    """gptoss-train."""
    return _start("train")


def generate() -> int:
    """gptoss-generate."""
    return _start("generate")


def prepare() -> int:
    """gptoss-prepare."""
    return _start("prepare")


def bench() -> int:
    """gptoss-bench."""
    return _start("bench")


def _start(command: str) -> int:
    try:
        code: int = import_module(f"gptoss_builder.cli.{command}").main()
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
