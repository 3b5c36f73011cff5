"""What a command needs beyond the core install."""

from __future__ import annotations

from importlib import import_module

from gptoss_builder.errors import InputError, install

TRAINING = ("numpy", "safetensors", "torch")
"""Packages of the extra `train` that every training run imports."""


def require_packages(what: str, *names: str) -> None:
    """Import packages of the extra `train`, so that one that is missing is no traceback later.

    Args:
        what: what needs them, as the error says it.
        names: of the packages.

    Raises:
        InputError: one is not installed; the message says what to install.
    """
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            missing = error.name or name
            raise InputError(f"{what} needs the package {missing}; {install('train')}") from error
