"""Where the data of a spec lies: relative paths, and what else they can be relative to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gptoss_builder.errors import InputError
from gptoss_builder.spec.schema import Spec

BYTES = "bytes"
"""The one `data.tokenizer` that is no path; a `data.path` of that name is one."""


def with_data_paths(spec: Spec, moved: Callable[[Path], str]) -> Spec:
    """Rewrite the relative data paths of a spec.

    Args:
        spec: the spec.
        moved: gives the path to write for a relative one; absolute ones stay.

    Raises:
        InputError: the path to write has a folder whose name is not UTF-8, which no JSON holds.
    """
    if spec.data is None:
        return spec
    named = {"path": spec.data.path}
    if spec.data.tokenizer != BYTES:
        named["tokenizer"] = spec.data.tokenizer
    paths = {
        field: _written(moved(Path(value)))
        for field, value in named.items()
        if not Path(value).is_absolute()
    }
    return spec.model_copy(update={"data": spec.data.model_copy(update=paths)})


def _written(path: str) -> str:
    """The path, in a form that cannot be taken for the built-in tokenizer."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{path.encode(errors='backslashreplace').decode()} is not UTF-8; rename that folder, "
            "or move the spec and its data out of it"
        ) from error
    return f"./{path}" if path == BYTES else path
