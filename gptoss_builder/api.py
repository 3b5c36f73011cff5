"""The public functions: what the commands do, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from gptoss_builder.pipeline import check, make_plan
from gptoss_builder.spec.load import load_spec
from gptoss_builder.spec.schema import Spec

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from gptoss_builder.model.transformer import Transformer
    from gptoss_builder.plan.schema import Plan
    from gptoss_builder.train.data import TrainingData
    from gptoss_builder.train.loop import Result

__all__ = ["build_model", "check", "load_spec", "make_plan", "train"]

Source = str | PathLike[str] | Mapping[str, Any] | Spec


def build_model(
    spec: Source,
    *,
    target: str | None = None,
    device: str | torch.device | None = None,
) -> Transformer:
    """Check a spec and build its model.

    Args:
        spec: path of a spec, a mapping, or a `Spec`.
        target: card or architecture that wins over the spec's own.
        device: where the parameters are made; the plan's kind of device if None, and `meta`
            makes the module without memory.

    Returns:
        The module, with fp32 parameters initialised from `spec.seed`. Its `plan` carries
        every decision.

    Raises:
        SpecError: the spec breaks a rule; all findings are in `error.findings`.
        TargetError: the target is not in the table.
        DeviceError: the device is not of the architecture that the plan is for.
    """
    from gptoss_builder.model.build import build

    return build(make_plan(spec, target=target), device=device)


def train(
    plan: Plan,
    *,
    model: nn.Module | None = None,
    data: TrainingData | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    stop_after: int | None = None,
    device: str | torch.device | None = None,
    unchecked_memory: bool = False,
) -> Result:
    """Train what a plan describes.

    Args:
        plan: from `make_plan`, or read from a build directory.
        model: a module in place of the plan's, with `hidden` and `head_weight` as in
            `gptoss_builder.train.step.Trainable`; its fp32 parameters are trained in place.
        data: sequences in place of the spec's, as `gptoss_builder.train.data.TrainingData`.
        run_dir: where checkpoints and metrics go; `runs/<name>-<target>` if None.
        resume: `auto` continues from the newest complete checkpoint of `run_dir`, a path from
            that one; None starts a run.
        stop_after: save and end after this optimizer step of the run.
        device: where, in place of the current one of the plan's kind.
        unchecked_memory: train where the free memory of a GPU cannot be read.

    Raises:
        InputError: nothing to train, a run directory in use, or one of its kinds: bad data, a
            device that cannot do what the plan says, a checkpoint that is not valid.
        RunError: the run failed; DivergedError where too many steps were not finite.
    """
    from gptoss_builder.train import loop

    return loop.train(
        plan,
        run_dir=run_dir,
        model=model,
        data=data,
        resume=resume,
        stop_after=stop_after,
        device=device,
        unchecked_memory=unchecked_memory,
    )
