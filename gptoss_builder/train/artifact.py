"""Reading back JSON that an earlier command wrote: nothing is used before its schema held."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from gptoss_builder.errors import ArtifactError


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """The object in `path`, valid under the published schema `schema` of `gptoss_builder/data`.

    Raises:
        ArtifactError: the file is missing, is not UTF-8 JSON, or breaks the schema; the message
            names the first place that does.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}") from error
    rules = json.loads((files("gptoss_builder") / "data" / schema).read_text(encoding="utf-8"))
    fault = next(iter(jsonschema.Draft202012Validator(rules).iter_errors(value)), None)
    if fault is not None:
        raise ArtifactError(f"{path}, {fault.json_path}: {fault.message}")
    assert isinstance(value, dict)  # every schema of ours is of an object
    return value
