"""gptoss-generate: continue a text with a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

from gptoss_builder.api import load_model
from gptoss_builder.cli.arguments import count, data_path, path, utf8, with_data
from gptoss_builder.cli.command import add_version, run_command
from gptoss_builder.cli.extras import TRAINING, require_packages
from gptoss_builder.errors import InputError
from gptoss_builder.spec.schema import Dispatch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 done, 2 bad input, 1 a failure."""
    return run_command("gptoss-generate", lambda: _run(_parser().parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    require_packages("generating text", *TRAINING)
    from gptoss_builder.cli.sample import continuation, sample_start
    from gptoss_builder.generate import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    model = load_model(
        options.run, target=options.target, dispatch=options.dispatch, device=options.device
    )
    start = sample_start(with_data(model.plan, tokenizer=options.tokenizer), options.prompt)
    if start is None:
        raise InputError("the model's spec has no data section, so it names no tokenizer")
    if options.tokens > start.room:
        raise InputError(
            f"--tokens {options.tokens} after a prompt of {len(start.ids)} tokens, and the context "
            f"has room for {start.room}; give fewer, or a shorter --prompt"
        )
    print(start.prompt, end="", flush=True)
    for piece in continuation(model, start, options.tokens, sampling):
        print(piece, end="", flush=True)
    print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gptoss-generate",
        description="Continue a text with the model of a run.",
        epilog="Exit codes: 0 done; 1 a failure; 2 bad input.",
    )
    add = parser.add_argument
    add(
        "run",
        type=path,
        metavar="RUN",
        help="a run directory (its newest checkpoint), or a checkpoint",
    )
    add(
        "--prompt",
        type=utf8,
        metavar="TEXT",
        help="what to continue (default: the beginning of a document)",
    )
    add(
        "--tokens",
        type=count,
        default=200,
        metavar="N",
        help="how many tokens to draw (default: 200)",
    )
    add(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 always takes the likeliest token (default: 0.8)",
    )
    add("--top-k", type=count, metavar="K", help="draw among the K likeliest tokens only")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="draw among the fewest tokens whose probabilities reach P",
    )
    add("--seed", type=int, default=0, help="the same seed draws the same text (default: 0)")
    add("--tokenizer", type=data_path, metavar="PATH", help="in place of the spec's data.tokenizer")
    add("--target", metavar="T", help="card, architecture or cpu in place of the spec's target.gpu")
    add(
        "--dispatch",
        choices=get_args(Dispatch),
        help="in place of the spec's model.moe.dispatch; stacked runs anywhere",
    )
    add("--device", metavar="DEVICE", help="such as cuda:1 (default: the current GPU, or the CPU)")
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
