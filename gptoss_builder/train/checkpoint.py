"""Checkpoints: tensors in safetensors, the rest in JSON, written whole or not at all.

A checkpoint is a folder `step-00000200`. It is filled under another name, flushed to the disk,
and renamed; its manifest holds the size and hash of every file, so a folder that was cut short
is known as such. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gptoss_builder.errors import ArtifactError, RunError
from gptoss_builder.files import new_directory
from gptoss_builder.train.artifact import read_json

CHECKPOINTS = "checkpoints"
"""Folder of a run directory that holds its checkpoints."""
MANIFEST = "manifest.json"
STATE = "state.json"
MODEL, OPTIMIZER, RNG = "model.safetensors", "optimizer.safetensors", "rng.safetensors"
TENSOR_FILES = (MODEL, OPTIMIZER, RNG)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds, on the CPU."""

    path: Path
    step: int
    state: dict[str, Any]
    """`state.json`, valid under its schema."""
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rng: dict[str, Tensor]


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by their plain names; a tied one appears once.

    The prefixes of torch.compile and of checkpoint wrappers are no part of a name, so a model
    that was saved compiled loads uncompiled and the other way round.
    """
    wrappers = {"_orig_mod", "_checkpoint_wrapped_module"}
    return {
        ".".join(part for part in name.split(".") if part not in wrappers): parameter
        for name, parameter in model.named_parameters()
    }


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimizer as `exp_avg.<parameter>` and so on."""
    return {
        f"{kind}.{name}": optimizer.state[parameter][kind]
        for name, parameter in parameters(model).items()
        if parameter.requires_grad
        for kind in MOMENTS
    }


def save(
    directory: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rng: dict[str, Tensor],
    state: dict[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of step `state["step"]` in `directory`; then drop the oldest.

    Args:
        directory: holds the checkpoints of one run.
        model: its parameters are saved, in fp32.
        optimizer: made by `optim.adamw` over `model`.
        rng: states from `rng.tensors`.
        state: the content of `state.json`.
        keep: newest checkpoints, by step, that stay; the one just written is among them.

    Raises:
        RunError: the disk is full or not writable. What was there before is intact and no
            part of the new one stays.
    """
    step: int = state["step"]
    path = directory / f"step-{step:08d}"
    weights = {name: parameter.detach() for name, parameter in parameters(model).items()}
    files = {MODEL: weights, OPTIMIZER: optimizer_tensors(model, optimizer), RNG: rng}
    try:
        with new_directory(path) as fresh:
            for name, tensors in files.items():
                save_file({key: value.contiguous() for key, value in tensors.items()}, fresh / name)
            (fresh / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
            entries = {name: _fingerprint(fresh / name) for name in (*files, STATE)}
            manifest = {"checkpoint": 1, "step": step, "files": entries}
            (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for file in (*fresh.iterdir(), fresh):
                _flush(file)
        _flush(directory)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"checkpoint {path} could not be written: {error}; earlier checkpoints are intact. "
            "Free some space or choose another --run, then go on with --resume"
        ) from error
    for _, old in found(directory)[keep:]:
        shutil.rmtree(old)
    return path


def found(directory: Path) -> list[tuple[int, Path]]:
    """Step and folder of every checkpoint in `directory`, the highest step first."""
    if not directory.is_dir():
        return []
    matches = ((_NAME.fullmatch(entry.name), entry) for entry in directory.iterdir())
    return sorted(
        ((int(match[1]), entry) for match, entry in matches if match and entry.is_dir()),
        reverse=True,
    )


def load_newest(directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint in `directory`; None if there is none at all.

    One that was cut short is renamed to `….broken`, with a warning, and the one before it is
    taken.

    Raises:
        ArtifactError: there are checkpoints, but none is complete.
    """
    faults: list[str] = []
    for _, path in found(directory):
        try:
            checkpoint = load(path)
        except ArtifactError as error:
            faults.append(str(error))
            continue
        for (_, broken), fault in zip(found(directory), faults, strict=False):
            warnings.warn(f"{fault}; renamed, resuming from {path.name}", stacklevel=2)
            broken.rename(broken.with_name(f"{broken.name}.broken"))
        return checkpoint
    if faults:
        raise ArtifactError("no checkpoint is complete: " + "; ".join(faults))
    return None


def load_run(path: Path) -> Checkpoint:
    """The newest checkpoint of a run directory, or the one that `path` itself is.

    Raises:
        ArtifactError: `path` is neither, or the checkpoint is damaged.
    """
    newest = found(path / CHECKPOINTS)
    return load(newest[0][1] if newest else path)


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, every file checked against the manifest first.

    Raises:
        ArtifactError: it is not a checkpoint, or a file is missing, cut short or changed.
    """
    if not (path / MANIFEST).exists():
        raise ArtifactError(
            f"{path} is no checkpoint: there is no {MANIFEST} in it; name a folder such as "
            "runs/NAME/checkpoints/step-00000200"
        )
    manifest = read_json(path / MANIFEST, "checkpoint.schema.json")
    for name, expected in manifest["files"].items():
        if not (path / name).is_file():
            raise ArtifactError(f"checkpoint {path} is not complete: {name} is missing")
        if _fingerprint(path / name) != expected:
            raise ArtifactError(f"checkpoint {path} is damaged: {name} is not what was written")
    state = read_json(path / STATE, "train_state.schema.json")
    if state["step"] != manifest["step"]:
        raise ArtifactError(f"checkpoint {path}: manifest and state name different steps")
    try:
        tensors = {name: load_file(path / name) for name in TENSOR_FILES}
    except SafetensorError as error:
        raise ArtifactError(f"checkpoint {path} is not safetensors: {error}") from error
    return Checkpoint(
        path, manifest["step"], state, tensors[MODEL], tensors[OPTIMIZER], tensors[RNG]
    )


def restore_model(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Copy the weights into `model`, which must have exactly these parameters.

    Raises:
        ArtifactError: a name is missing or too many, or a shape or type differs.
    """
    _copy_into(dict(parameters(model)), checkpoint.model, checkpoint.path / MODEL)


def restore_optimizer(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Copy the optimizer's state back; it stays fp32.

    Raises:
        ArtifactError: a name is missing or too many, or a shape or type differs.
    """
    wanted = optimizer_tensors(model, optimizer)
    _copy_into(wanted, checkpoint.optimizer, checkpoint.path / OPTIMIZER)


def _copy_into(wanted: dict[str, Any], have: dict[str, Tensor], file: Path) -> None:
    missing, unexpected = wanted.keys() - have.keys(), have.keys() - wanted.keys()
    if missing or unexpected:
        raise ArtifactError(
            f"{file} is of another model: missing {_some(missing)}; unexpected {_some(unexpected)}"
        )
    for name, tensor in wanted.items():
        saved = have[name]
        if (saved.shape, saved.dtype) != (tensor.shape, tensor.dtype):
            raise ArtifactError(
                f"{file}, {name}: {saved.dtype} {tuple(saved.shape)}, but the model has "
                f"{tensor.dtype} {tuple(tensor.shape)}"
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(have[name])


def _some(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return (", ".join(listed[:3]) or "none") + more


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
