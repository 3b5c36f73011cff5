"""Loss curves of the kernel in bf16 and of the plain loop in fp32, beside the spread of seeds.

    python -m benchmarks.curves --data SHARDS --tokenizer tokenizer.json --out curves.json
    python -m benchmarks.curves --data README.md --target cpu --steps 40 --context 64 --d-model 64

Each seed makes one set of initial weights, from which both variants start; every run sees the same
batches. On a GPU the variants are `triton_grouped` in bf16 and `stacked` in fp32, on a CPU
`stacked` in both. Losses are averaged over windows of steps. With a_s and b_s the means of the two
variants from seed s in one window,

    difference = sqrt(mean over s of (a_s − b_s)²)      spread = standard deviation over s of b_s

and the curves agree if the difference is below the spread in every window. That is stricter than
comparing averages over seeds, in which errors of either sign cancel. Exit code 1 if they do not
agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.arguments import new_file, positive
from benchmarks.measure import machine
from gptoss_builder.errors import GptossError, InputError
from gptoss_builder.files import write_text
from gptoss_builder.model.build import build
from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.schema import Plan
from gptoss_builder.tokenizer import load_tokenizer
from gptoss_builder.train.corpus import open_corpus
from gptoss_builder.train.data import CorpusData, Loader
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.step import Stepper

HOLDOUT = 0.05
MIN_SEEDS = 3


class Variant(NamedTuple):
    """How the experts run, and in which precision."""

    dispatch: str
    precision: str

    def __str__(self) -> str:
        return f"{self.dispatch} {self.precision}"


Curves = dict[str, list[list[float]]]
"""By variant, for each seed the losses of its steps."""


def plan_of(variant: Variant, seed: int, vocab: int, options: argparse.Namespace) -> Plan:
    """The plan of one run: a small model of the 502M one's kind."""
    return make_plan(
        {
            "spec": 1,
            "name": "curves",
            "seed": seed,
            "model": {
                "vocab": vocab,
                "d_model": options.d_model,
                "layers": options.layers,
                "attention": {
                    "heads": 4,
                    "kv_heads": 2,
                    "head_dim": options.d_model // 4,
                    "window": max(1, options.context // 4),
                },
                "moe": {
                    "experts": 8,
                    "top_k": 2,
                    "shared_experts": 1,
                    "d_ff": 2 * options.d_model,
                    "dispatch": variant.dispatch,
                },
            },
            "training": {
                "context": options.context,
                "micro_batch": options.micro_batch,
                "steps": options.steps,
                "precision": variant.precision,
                "compile": False,
                "optimizer": {"lr": options.lr, "warmup_steps": options.steps // 10},
            },
            "target": {"gpu": options.target},
        }
    )


def losses(plan: Plan, data: CorpusData) -> list[float]:
    """Train a model from the plan's seed; the loss of every step, in nats a token."""
    training = plan.spec.training
    assert training is not None
    device = torch.device(plan.execution.device)
    torch.manual_seed(plan.spec.seed)
    stepper = Stepper(plan, build(plan, device=device), NanGuard(training.nan_guard))
    loader = Loader(
        data,
        accumulate=training.accumulate,
        micro_batch=training.micro_batch,
        context=training.context,
        vocab=plan.spec.model.vocab,
        device=device,
    )
    steps = enumerate(loader.steps(0, training.steps))
    found = [stepper.run(batch, index).numbers[0] for index, batch in steps]
    return [float(loss) for loss in torch.stack(found).tolist()]


def compare(curves: Curves, window: int) -> list[dict[str, float]]:
    """The two variants in every window of steps.

    Args:
        curves: two variants, the second the one that the first is held to; the same seeds.
        window: steps of an average; a shorter rest is left over.

    Returns:
        For each window its last `step`, the `means` over seeds of both, `difference` and
        `spread` as the module's text says; all nats a token.
    """
    ours, theirs = ([_windows(run, window) for run in runs] for runs in curves.values())
    rows = []
    for number, (a_S, b_S) in enumerate(zip(zip(*ours), zip(*theirs)), 1):  # noqa: B905
        squares = [(a - b) ** 2 for a, b in zip(a_S, b_S, strict=True)]
        rows.append(
            {
                "step": number * window,
                "ours": statistics.fmean(a_S),
                "theirs": statistics.fmean(b_S),
                "difference": statistics.fmean(squares) ** 0.5,
                "spread": statistics.stdev(b_S),
            }
        )
    return rows


def agree(rows: Sequence[dict[str, float]]) -> bool:
    """Whether every difference is below its spread; one that is not a number is not."""
    return all(row["difference"] < row["spread"] for row in rows)


def _windows(run: Sequence[float], window: int) -> list[float]:
    last = len(run) - len(run) % window
    return [statistics.fmean(run[at : at + window]) for at in range(0, last, window)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train every variant from every seed and compare.

    Raises:
        InputError: the data cannot be used, or the sizes are not legal.
    """
    tokenizer = load_tokenizer(options.tokenizer)
    corpus = open_corpus(options.data, tokenizer, tokenizer.size)
    data = CorpusData(
        corpus, context=options.context, holdout=HOLDOUT, seed=0, vocab=tokenizer.size
    )
    first = "stacked" if options.target == "cpu" else "triton_grouped"
    curves: Curves = {}
    for variant in (Variant(first, "bf16"), Variant("stacked", "fp32")):
        curves[str(variant)] = []
        for seed in range(options.seeds):
            began = time.monotonic()
            run = losses(plan_of(variant, seed, tokenizer.size, options), data)
            curves[str(variant)].append([round(loss, 5) for loss in run])
            taken = time.monotonic() - began
            print(
                f"{variant}, seed {seed}: {run[0]:.4f} → {run[-1]:.4f}, {taken:.1f} s", flush=True
            )
    rows = compare(curves, options.window)
    names = ("layers", "d_model", "context", "micro_batch", "steps", "lr", "window", "seeds")
    return machine() | {
        "sizes": {name: getattr(options, name) for name in names} | {"vocab": tokenizer.size},
        "agree": agree(rows),
        "rows": rows,
        "curves": curves,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 is bad input, 1 curves that do not agree."""
    options = _parser().parse_args(arguments)
    try:
        if options.seeds < MIN_SEEDS or options.steps < options.window:
            raise InputError(f"give {MIN_SEEDS} seeds or more, and steps for one window or more")
        content = measure(options)
        if options.out is not None:
            write_text(options.out, json.dumps(content) + "\n")
    except (GptossError, OSError) as error:
        print(f"curves: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, GptossError) else 1
    print(table(content))
    return 0 if content["agree"] else 1


def table(content: dict[str, Any]) -> str:
    """The windows as a Markdown table, and the verdict."""
    ours, theirs = content["curves"]
    lines = [f"| steps to | {ours} | {theirs} | difference | spread |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['step']:.0f} | {row['ours']:.4f} | {row['theirs']:.4f} | "
        f"{row['difference']:.4f} | {row['spread']:.4f} |"
        for row in content["rows"]
    ]
    worst = max(row["difference"] / row["spread"] for row in content["rows"])
    verdict = "agree" if content["agree"] else "do NOT agree"
    return "\n".join([*lines, "", f"The curves {verdict}: worst difference / spread {worst:.2f}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare loss curves with the spread of seeds.")
    add = parser.add_argument
    add("--data", type=Path, required=True, help="text or token shards")
    add("--tokenizer", default="bytes", help="bytes (default) or a tokenizer.json")
    add("--target", default="h200", help="a card or cpu (default: h200)")
    add("--seeds", type=positive, default=5, help="default: 5")
    add("--steps", type=positive, default=200, help="default: 200")
    add("--window", type=positive, default=20, help="steps of an average (default: 20)")
    add("--layers", type=positive, default=4)
    add("--d-model", type=positive, default=256)
    add("--context", type=positive, default=512)
    add("--micro-batch", type=positive, default=8)
    add("--lr", type=float, default=1e-3)
    add("--out", type=new_file, metavar="JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
