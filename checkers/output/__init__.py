"""Output formats of gptoss-check: a format a file."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from checkers.report import Report

_MODULES = {
    "text": "text",
    "json": "json_format",
    "sarif": "sarif",
    "github": "github",
    "junit": "junit",
}
FORMATS = tuple(_MODULES)
"""Names that `--format` takes."""


def renderer(name: str) -> Callable[[Report], str]:
    """What renders a report in a format; only that format's module is loaded."""
    render: Callable[[Report], str] = import_module(f"checkers.output.{_MODULES[name]}").render
    return render
