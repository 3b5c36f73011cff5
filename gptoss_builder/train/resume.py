"""Continuing a run: what may have changed since, and what may not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gptoss_builder.errors import ArtifactError, InputError
from gptoss_builder.findings import leaves
from gptoss_builder.spec.schema import Spec
from gptoss_builder.train import checkpoint
from gptoss_builder.train.checkpoint import Checkpoint

FIXED = ("spec", "seed", "model.", "training.context")
"""Fields, and beginnings of fields, whose change makes another model or another data order."""

FREE = (
    "model.init_std",
    "model.attention.backend",
    "model.moe.aux_loss",
    "model.moe.dispatch",
    "model.moe.backward",
)
"""Exceptions from `FIXED`: they say how to compute or what to weigh, not what the weights are."""


def find(directory: Path, resume: str | Path) -> Checkpoint | None:
    """The checkpoint to continue from.

    Args:
        directory: the checkpoints of the run.
        resume: `auto` for the newest complete one of the run, or the path of one.

    Returns:
        The checkpoint; None if `auto` finds none, which is a run that starts.

    Raises:
        ArtifactError: the checkpoint is damaged, or `auto` finds damaged ones only.
        InputError: the run has gone on beyond the one that was named.
    """
    if resume == "auto":
        return checkpoint.load_newest(directory)
    loaded = checkpoint.load(Path(resume))
    newer = [path.name for step, path in checkpoint.found(directory) if step > loaded.step]
    if newer:
        raise InputError(
            f"the run has gone on to {newer[0]}, beyond {resume}: two histories in one folder "
            "cannot be told apart; give this one its own place with --run"
        )
    return loaded


def saved_spec(saved: Mapping[str, Any]) -> Spec:
    """The spec of a checkpoint; a field that its version did not know has its default.

    Raises:
        ArtifactError: it is not one of this version.
    """
    try:
        return Spec.model_validate_json(json.dumps(saved))
    except ValidationError as error:
        raise ArtifactError(f"the checkpoint's spec is not one of this version: {error}") from error


def changes(saved: Mapping[str, Any], spec: Spec) -> list[str]:
    """What differs between the spec of a checkpoint and the one in use, `field: old → new`.

    Everything that differs is either refused here or applied from now on; the caller says so.
    A field that the checkpoint's version did not know had its default.

    Raises:
        ArtifactError: the checkpoint's spec is not one of this version.
        InputError: a field differs that makes another model or another order of the data.
    """
    then = saved_spec(saved)
    old, new = (dict(leaves(each.model_dump(mode="json"))) for each in (then, spec))
    differing = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    lines = {name: f"{name}: {old.get(name)} → {new.get(name)}" for name in differing}
    refused = [
        lines[name]
        for name in differing
        if name not in FREE
        and any(name == field or (field[-1] == "." and name.startswith(field)) for field in FIXED)
    ]
    if refused:
        raise InputError(
            "the checkpoint is of another model or data order: "
            f"{'; '.join(refused)}; set these back, or start anew with another --run"
        )
    return list(lines.values())


def require_same_data(saved: str, identity: str) -> None:
    """Raise if the data is not what the checkpoint was trained on.

    Raises:
        ArtifactError: it is not; position and epoch of the run would mean nothing.
    """
    if saved != identity:
        raise ArtifactError(
            f"the checkpoint was trained on other data ({saved}) than this ({identity}); point "
            "--data to the same text or shards, or start anew with another --run"
        )
