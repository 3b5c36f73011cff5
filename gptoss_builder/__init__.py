"""gptoss-builder: one YAML spec becomes a checked plan, a model, a kernel launch and a trainer.

The public names load on first use, so that importing this package imports neither torch
nor triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptoss_builder.api import build_model, check, load_model, load_spec, make_plan, train
    from gptoss_builder.errors import GptossError, SpecError

__version__ = "0.1.0"

_HOMES = {
    "build_model": "gptoss_builder.api",
    "check": "gptoss_builder.api",
    "load_model": "gptoss_builder.api",
    "load_spec": "gptoss_builder.api",
    "make_plan": "gptoss_builder.api",
    "train": "gptoss_builder.api",
    "GptossError": "gptoss_builder.errors",
    "SpecError": "gptoss_builder.errors",
}

__all__ = [
    "GptossError",
    "SpecError",
    "build_model",
    "check",
    "load_model",
    "load_spec",
    "make_plan",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
