"""Reading and writing `plan.json`. What comes back from disk is checked before it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import ValidationError

from gptoss_builder.errors import ArtifactError
from gptoss_builder.files import write_text
from gptoss_builder.plan.json_schema import plan_schema
from gptoss_builder.plan.schema import Plan


def plan_text(plan: Plan) -> str:
    """The content of `plan.json`: the same plan gives the same text."""
    return json.dumps(plan.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all.

    Raises:
        OSError: the folder is not there or cannot be written; an older file stays.
    """
    write_text(path, plan_text(plan))


def read_plan(path: Path) -> Plan:
    """Read a plan that `write_plan` or `gptoss-build` wrote.

    Raises:
        ArtifactError: there is no such file, it is no JSON, or it is no plan of this version;
            the message names the file and, for a value, the JSON pointer to it.
    """
    document = _load(path)
    fault = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(plan_schema()).iter_errors(document)
    )
    if fault is not None:
        raise _not_a_plan(path, list(fault.absolute_path), fault.message)
    try:
        return Plan.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _not_a_plan(path, list(first["loc"]), first["msg"]) from None


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArtifactError(f"{path} is not there; gptoss-build writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}; build it again") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _not_a_plan(path: Path, location: list[str | int], message: str) -> ArtifactError:
    pointer = "".join(f"/{part}" for part in location) or "/"
    shown = message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]}…"
    return ArtifactError(
        f"{path} is no plan of this version: {pointer}: {shown}; build it again with gptoss-build"
    )


_MESSAGE = 200
