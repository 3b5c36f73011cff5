"""Output formats of gptoss-check: a format a file."""

from __future__ import annotations

from collections.abc import Callable

from checkers.output import github, json_format, junit, sarif, text
from checkers.report import Report

FORMATS: dict[str, Callable[[Report], str]] = {
    "text": text.render,
    "json": json_format.render,
    "sarif": sarif.render,
    "github": github.render,
    "junit": junit.render,
}
"""By the name that `--format` takes; each ends with a line end."""
