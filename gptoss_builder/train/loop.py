"""From a plan to a trained model in a run directory.

A run directory holds `checkpoints/`, `metrics.jsonl` (a line a step) and `run.jsonl` (a line
a part of the run: what really ran).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from gptoss_builder.build_directory import default_directory
from gptoss_builder.errors import InputError, RunError
from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.schema import TrainingSpec
from gptoss_builder.tokenizer import load_tokenizer
from gptoss_builder.train import checkpoint, compiling, metrics
from gptoss_builder.train import resume as resuming
from gptoss_builder.train.allocator import segments, use_expandable_segments
from gptoss_builder.train.checkpoint import CHECKPOINTS, Checkpoint
from gptoss_builder.train.corpus import open_corpus
from gptoss_builder.train.data import CorpusData, TrainingData, require_training_data
from gptoss_builder.train.device import require_memory, training_device
from gptoss_builder.train.display import Display
from gptoss_builder.train.evaluate import HeldOut
from gptoss_builder.train.metrics import Metrics
from gptoss_builder.train.record import RunRecord
from gptoss_builder.train.run import Run
from gptoss_builder.train.stop import StopRequest


@dataclass(frozen=True)
class Result:
    """How a run, or a part of it, ended."""

    model: nn.Module
    """The fp32 masters."""
    steps_done: int
    """Optimizer steps done in all."""
    trained: int
    """Optimizer steps done by this call; 0 if there was nothing left to do."""
    held_out: HeldOut | None
    """Of the final weights; None if nothing was trained or held out, or a signal came."""
    checkpoint: Path
    """The last one."""
    stopped_by: int | None
    """Number of the signal that stopped the run, if one did."""


def train(
    plan: Plan,
    *,
    run_dir: Path | str | None = None,
    model: nn.Module | None = None,
    data: TrainingData | None = None,
    resume: str | Path | None = None,
    stop_after: int | None = None,
    device: torch.device | str | None = None,
    unchecked_memory: bool = False,
    console: Console | None = None,
) -> Result:
    """Train what a plan describes.

    Args:
        plan: from `make_plan`, or read from a build directory.
        run_dir: where the run lives, made if it is not there; `runs/<name>-<target>` if None.
        model: a module in place of the plan's, with `hidden` and `head_weight` as in
            `train.step.Trainable`; its fp32 parameters are trained in place.
        data: sequences in place of the spec's data.
        resume: None starts a run; `auto` continues from the newest complete checkpoint of
            `run_dir`, or starts if there is none; a path continues from that checkpoint.
        stop_after: save and end after this optimizer step of the run; the schedule stays that
            of the whole run.
        device: where, in place of the current one of the plan's kind.
        unchecked_memory: train where the free memory of a GPU cannot be read.
        console: where progress goes; standard output if None.

    Raises:
        InputError: no training section, a run directory in use, a change that cannot be
            resumed; bad data, devices and checkpoints raise its kinds.
        DivergedError: too many steps in a row were not finite.
        RunError: a checkpoint could not be written, or what ran was not what was planned.
    """
    training = _training(plan)
    if stop_after is not None and stop_after < 1:
        raise InputError(f"stop_after is {stop_after}; steps count from 1")
    if plan.execution.device == "cuda":
        use_expandable_segments()
    place = training_device(plan, device)
    directory = Path(run_dir if run_dir is not None else f"runs/{default_directory(plan).name}")
    with _owned(directory), StopRequest() as stop:
        start = _find_start(directory, resume)
        events = resuming.changes(start.state["spec"], plan.spec) if start else []
        sequences = data if data is not None else open_data(plan)
        require_training_data(sequences)
        if model is None:
            require_memory(plan, place, unchecked=unchecked_memory)
            model, ours = build(plan, device=place), True
        else:
            ours = False
        torch.manual_seed(plan.spec.seed)
        run = Run(plan, training, model, sequences, directory=directory, device=place, stop=stop)
        if start is not None:
            run.restore(start)
            events = [f"resumed from {start.path.name}", *events]
        elif resume is not None:
            events = [f"no checkpoint in {directory}: the run starts"]
        if not training.nan_guard.enabled:
            events.append(f"the NaN guard is off: {training.nan_guard.consent}")
        events += _memory_events(place, ours=ours, unchecked=unchecked_memory)
        record = RunRecord(plan, run.compute, place, events, ours=ours)
        first = run.step
        last = min(stop_after or training.steps, training.steps)
        try:
            with _failures_in_words(run):
                held_out = _go(
                    run,
                    last,
                    directory,
                    Display(console or Console(), start=first, steps=training.steps),
                    events,
                )
        finally:
            record.write(directory, steps=(first, run.step), computed=run.computed)
        if run.computed:
            record.require_as_planned()
    number = None if stop.signal is None else int(stop.signal)
    return Result(model, run.step, run.step - first, held_out, run.save(), number)


@contextmanager
def _failures_in_words(run: Run) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"out of memory at step {run.step + 1}: {error}. Lower training.micro_batch, set "
            "training.checkpoint_every, or lower training.loss_chunk, and build again"
        ) from error
    except torch.AcceleratorError as error:
        raise RunError(
            f"the GPU failed at step {run.step + 1} or a little before: {error}. If it does "
            "not fail with model.moe.dispatch: stacked, the kernel is at fault"
        ) from error
    except RuntimeError as error:
        fault = compiling.fault_of(error)
        if fault is None:
            raise
        raise RunError(
            f"step {run.step + 1} cannot be compiled: {fault}. Give the compiler what it asks "
            "for, or set training.compile: false and build again"
        ) from error


def _memory_events(device: torch.device, *, ours: bool, unchecked: bool) -> list[str]:
    if device.type != "cuda":
        return []
    events = []
    if not ours:
        events.append("memory is not checked: the estimate is of this project's model")
    elif unchecked:
        events.append("--unchecked-memory: trains also where free memory cannot be read")
    if segments(device) == "fixed":
        events.append(
            "CUDA's allocator does not use expandable segments, for which memory is estimated: "
            "fragmentation can take more. Unset PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, "
            "and train before anything else uses the GPU"
        )
    return events


def open_data(plan: Plan) -> CorpusData:
    """The data that the spec names, split and ordered as it says.

    Raises:
        InputError: the spec names none.
        DataError, ArtifactError: it cannot be used.
    """
    spec = plan.spec
    if spec.data is None:
        raise InputError("the spec has no data section; add data.path, or give train() data")
    corpus = open_corpus(
        Path(spec.data.path), load_tokenizer(spec.data.tokenizer), spec.model.vocab
    )
    return CorpusData(
        corpus,
        context=_training(plan).context,
        holdout=spec.data.holdout,
        seed=spec.seed,
        vocab=spec.model.vocab,
    )


def _go(
    run: Run, last: int, directory: Path, display: Display, events: list[str]
) -> HeldOut | None:
    first = run.step
    held_out = None
    with Metrics(directory, step=first) as lines, display:
        for event in events:
            display.note(event)
        run.advance(last, lines, display)
        if run.step > first:
            run.save()
            held_out = run.evaluate(lines, display)
    return held_out


def _training(plan: Plan) -> TrainingSpec:
    if plan.spec.training is None:
        raise InputError("the spec has no training section, so there is nothing to train")
    return plan.spec.training


def _find_start(directory: Path, resume: str | Path | None) -> Checkpoint | None:
    checkpoints = directory / CHECKPOINTS
    if resume is not None:
        return resuming.find(checkpoints, resume)
    if checkpoint.found(checkpoints) or (directory / metrics.FILE).exists():
        raise InputError(
            f"{directory} holds a run already; continue it with --resume, or choose another "
            "place with --run"
        )
    return None


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Keep a second trainer out of the run directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise InputError(
            f"run directory {directory} cannot be written: {error.strerror}; choose another "
            "place with --run"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another process is training in {directory}") from error
        yield
