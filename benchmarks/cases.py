"""The cases of the kernel's and of the layer's benchmark: sizes, command line, one run of all.

A case that fails, or one run in it, is printed and does not lose the others: the JSON file is
written after every case, and the exit code is 1 in the end.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from benchmarks.arguments import new_file, positive
from benchmarks.measure import machine, write_json

T = TypeVar("T")
LOADS = ("balanced", "one", "half")


class WrongResultError(Exception):
    """What was computed is not right, so it is not timed."""


class Case(NamedTuple):
    """Sizes, and how the tokens are spread over the experts."""

    name: str = "own"
    tokens: int = 32768
    top_k: int = 2
    experts: int = 8
    d_model: int = 768
    d_ff: int = 1536
    load: str = "balanced"
    """`one`: the same K experts for all tokens; `half`: every second expert has no rows."""

    @property
    def rows(self) -> int:
        """Rows that the experts compute."""
        return self.tokens * self.top_k

    @property
    def title(self) -> str:
        """The sizes, for a table's title."""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return (
            f"{tokens}, top-{self.top_k} of {self.experts}, {self.d_model} → {self.d_ff}, "
            f"{self.load}, bf16"
        )


CASES = {
    case.name: case
    for case in (
        Case("lite"),
        Case("fine", top_k=8, experts=128, d_model=2048, d_ff=768),
        Case("one", load="one"),
        Case("half", load="half"),
        Case("decode-64", tokens=64),
        Case("decode-1", tokens=1),
    )
}
"""What one command measures for the benchmark page."""


def parser(description: str) -> argparse.ArgumentParser:
    """The command line: named cases or sizes of one's own, and how long to measure."""
    parser = argparse.ArgumentParser(description=description)
    own = Case()
    parser.add_argument(
        "--cases", nargs="+", choices=[*CASES, "all"], default=[], help="default: the sizes below"
    )
    for name in ("tokens", "top_k", "experts", "d_model", "d_ff"):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=positive, help=f"default: {getattr(own, name)}")
    parser.add_argument("--load", choices=LOADS, help=f"default: {own.load}")
    parser.add_argument(
        "--repeat", type=positive, default=200, help="milliseconds of a measurement; default: 200"
    )
    parser.add_argument("--out", type=new_file, help="JSON file for the figures")
    return parser


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for; leaves with 2 where it contradicts itself."""
    sizes = {
        field: value for field in Case._fields[1:] if (value := getattr(options, field)) is not None
    }
    if not options.cases:
        case = Case(**sizes)
        if case.top_k > case.experts:
            parser.error(f"--top-k {case.top_k} of {case.experts} --experts")
        return [case]
    if sizes:
        parser.error("--cases have sizes of their own; leave out the others")
    return list(CASES.values()) if "all" in options.cases else [CASES[c] for c in options.cases]


def run_cases(
    cases: Sequence[Case], run: Callable[[Case, dict[str, str]], dict[str, Any]], out: Path | None
) -> int:
    """Run each case; what it returns goes into the JSON file, what fails into its `failures`.

    Returns:
        The exit code: 1 if anything failed.
    """
    results: list[dict[str, Any]] = []
    for case in cases:
        failures: dict[str, str] = {}
        result = attempt("the case", partial(run, case, failures), failures)
        # with what this case compiled, another number of rows would get a slower kernel for any
        torch._dynamo.reset()
        results.append({"case": case._asdict(), **(result or {}), "failures": failures})
        sys.stdout.flush()
        if out is not None:
            write_json(out, {"machine": machine(), "cases": results})
    return int(any(result["failures"] for result in results))


def attempt(name: str, work: Callable[[], T], failures: dict[str, str]) -> T | None:
    """What `work` returns; None, a message and an entry in `failures` if it fails."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the other figures are not lost
        failures[name] = f"{type(error).__name__}: {error}"
        print(f"{name} failed, {failures[name]}", file=sys.stderr, flush=True)
        return None
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
