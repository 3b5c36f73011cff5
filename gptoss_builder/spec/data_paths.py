"""Where the data of a spec lies: relative paths, and what else they can be relative to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gptoss_builder.spec.schema import Spec


def with_data_paths(spec: Spec, moved: Callable[[Path], str]) -> Spec:
    """Rewrite the relative data paths of a spec.

    Args:
        spec: the spec.
        moved: gives the path to write for a relative one; absolute ones and `bytes` stay.
    """
    if spec.data is None:
        return spec
    paths = {
        field: moved(Path(value))
        for field, value in (("path", spec.data.path), ("tokenizer", spec.data.tokenizer))
        if not Path(value).is_absolute() and value != "bytes"
    }
    return spec.model_copy(update={"data": spec.data.model_copy(update=paths)})
