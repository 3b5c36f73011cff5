"""The public functions: what the commands do, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_builder.pipeline import Source, check, make_plan, plan_again
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.load import load_spec
from gptoss_builder.spec.schema import Dispatch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gptoss_builder.model.transformer import Transformer
    from gptoss_builder.train.data import TrainingData
    from gptoss_builder.train.loop import Result

__all__ = ["build_model", "check", "load_model", "load_spec", "make_plan", "train"]


def build_model(
    spec: Source | Plan,
    *,
    target: str | None = None,
    device: str | torch.device | None = None,
) -> Transformer:
    """Check a spec and build its model.

    Args:
        spec: path of a spec, a mapping, a `Spec`, or a plan of one.
        target: card or architecture that wins over the spec's own; of a plan too.
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

    return build(_plan(spec, target), device=device)


def load_model(
    run: str | Path,
    *,
    target: str | None = None,
    dispatch: Dispatch | None = None,
    device: str | torch.device | None = None,
) -> Transformer:
    """The model of a run, with the weights of a checkpoint: to evaluate it or to generate text.

    Args:
        run: a run directory, of which the newest checkpoint is taken, or a checkpoint.
        target: card or architecture in place of the one that it was trained for.
        dispatch: `model.moe.dispatch` in place of the spec's; `stacked` runs anywhere.
        device: as for `build_model`.

    Returns:
        The module with fp32 parameters. Its `plan` is made by this version.

    Raises:
        ArtifactError: there is no checkpoint, it is damaged, or not of this version.
        SpecError, TargetError, DeviceError: as `build_model`, for the target asked for.
    """
    from gptoss_builder.model.build import build
    from gptoss_builder.train import checkpoint, resume

    found = checkpoint.load_run(Path(run))
    spec = resume.saved_spec(found.state["spec"])
    if dispatch is not None:
        moe = spec.model.moe.model_copy(update={"dispatch": dispatch})
        model_spec = spec.model.model_copy(update={"moe": moe})
        spec = spec.model_copy(update={"model": model_spec, "kernel": "auto"})
    model = build(plan_again(spec, target=target), device=device)
    checkpoint.restore_model(found, model)
    return model


def _plan(source: Source | Plan, target: str | None = None) -> Plan:
    if not isinstance(source, Plan):
        return make_plan(source, target=target)
    return source if target is None else make_plan(source.spec, target=target)


def train(
    plan: Source | Plan,
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
        plan: from `make_plan`, or what `make_plan` takes.
        model: a module in place of the plan's, with `hidden` and `head_weight` as in
            `gptoss_builder.train.step.Trainable`; its fp32 parameters are trained in place.
        data: sequences in place of the spec's, as `gptoss_builder.train.data.TrainingData`.
        run_dir: where checkpoints and metrics go; `runs/<name>-<target>` if None.
        resume: `auto` continues from the newest complete checkpoint of `run_dir`, a path from
            that one; None starts a run.
        stop_after: save and end after this optimizer step of the run.
        device: where, in place of the current one of the plan's kind.
        unchecked_memory: train where the free memory of a GPU cannot be read.

    Returns:
        How the run ended: the fp32 model, steps done, the held-out loss, the last checkpoint.

    Raises:
        SpecError: a spec, not a plan, was given, and it breaks a rule.
        InputError: nothing to train, a run directory in use, or one of its kinds: bad data, a
            device that cannot do what the plan says, a checkpoint that is not valid.
        RunError: the run failed; DivergedError where too many steps were not finite.
    """
    from gptoss_builder.train import loop

    return loop.train(
        _plan(plan),
        run_dir=run_dir,
        model=model,
        data=data,
        resume=resume,
        stop_after=stop_after,
        device=device,
        unchecked_memory=unchecked_memory,
    )
