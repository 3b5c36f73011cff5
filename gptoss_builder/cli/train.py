"""gptoss-train: train what gptoss-build wrote."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gptoss_builder.cli.arguments import count, count_or_none, data_path, path, utf8, with_data
from gptoss_builder.cli.built import read_build
from gptoss_builder.cli.command import add_version, run_command
from gptoss_builder.cli.extras import TRAINING, require_packages
from gptoss_builder.plan.schema import Plan

if TYPE_CHECKING:
    from gptoss_builder.train.loop import Result

STOPPED = 3
"""Exit code of a run that a signal stopped after it had saved a checkpoint."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see `EPILOG` for the exit codes."""
    return run_command("gptoss-train", lambda: _main(arguments), lasting=True)


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        # the compiler's remarks on its own choices: nothing that a user could act on, and one
        # advises what would make fp32 inexact
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    build = Path(options.build)
    plan = with_data(read_build(build), data=options.data, tokenizer=options.tokenizer)
    run_dir = Path(options.run) if options.run else Path("runs") / build.resolve().name
    if plan.execution.device == "cpu":
        # Threads that wait for work sleep instead of spinning. Beside other processes on the
        # same two cores, spinning made a step of specs/tiny.yaml five times as long.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    require_packages("training", *TRAINING)
    from gptoss_builder.cli.sample import print_sample, sample_start
    from gptoss_builder.model.transformer import Transformer
    from gptoss_builder.train.loop import train

    start = sample_start(plan, options.prompt) if options.sample else None
    result = train(
        plan,
        run_dir=run_dir,
        resume=options.resume,
        stop_after=options.stop_after,
        device=options.device,
        unchecked_memory=options.unchecked_memory,
    )
    print(_summary(result, plan, run_dir))
    if result.stopped_by is not None:
        return STOPPED
    if start is not None:
        assert isinstance(result.model, Transformer)  # no other module was handed to train
        print_sample(result.model, start, options.sample)
    return 0


def _summary(result: Result, plan: Plan, run_dir: Path) -> str:
    steps = plan.spec.training.steps if plan.spec.training else 0
    if result.stopped_by is not None:
        name = signal.Signals(result.stopped_by).name
        return (
            f"stopped at step {result.steps_done} of {steps} by {name}; {result.checkpoint} is "
            "saved, go on with --resume"
        )
    if not result.trained:
        return f"nothing to do: {run_dir} is at step {result.steps_done} of {steps}"
    return f"trained to step {result.steps_done} of {steps}; {result.checkpoint} is saved"


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"gptoss-train: warning: {message}", file=sys.stderr)


EPILOG = """\
A run directory holds checkpoints/, metrics.jsonl (a line a step) and run.jsonl (what really ran).
SIGTERM or Ctrl-C saves a checkpoint at the next step boundary; a second one stops at once.
A run whose output nobody reads any more, or whose disk is full, goes on without it.

Exit codes: 0 done, or nothing left to do; 1 the run failed; 2 bad input; 3 stopped by a signal
with a checkpoint saved; 130 stopped at once by Ctrl-C.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gptoss-train",
        description="Train the model of a build directory, as its plan says.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("build", metavar="BUILD_DIR", help="what gptoss-build wrote")
    add(
        "--run",
        type=path,
        metavar="DIR",
        help="where the run lives (default: runs/<name of BUILD_DIR>)",
    )
    add(
        "--resume",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="continue from the newest complete checkpoint of the run, or from this one; a run "
        "without any starts",
    )
    add(
        "--data",
        type=data_path,
        metavar="PATH",
        help="text or token shards in place of the spec's data.path",
    )
    add("--tokenizer", type=data_path, metavar="PATH", help="in place of the spec's data.tokenizer")
    add(
        "--stop-after",
        type=count,
        metavar="STEP",
        help="save and end after this optimizer step; the schedule stays that of the whole run",
    )
    add("--device", metavar="DEVICE", help="such as cuda:1 (default: the current GPU, or the CPU)")
    add(
        "--unchecked-memory",
        action="store_true",
        help="train where the free memory of the GPU cannot be read; the run record says so",
    )
    add("--prompt", type=utf8, metavar="TEXT", help="what the sample at the end continues")
    add(
        "--sample",
        type=count_or_none,
        default=400,
        metavar="TOKENS",
        help="length of the sample at the end; 0 is none (default: 400)",
    )
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
