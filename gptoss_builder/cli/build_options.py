"""The options of gptoss-build, and which of them exclude each other."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from gptoss_builder.cli.command import add_version


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ends with the usage and exit code 2 where it is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if problem := _problem(parser, options):
        parser.error(problem)
    return options


def _problem(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What is wrong with options that are right one by one; "" if nothing is."""

    def given(*names: str) -> list[str]:
        set_ = (name for name in names if getattr(options, name) != parser.get_default(name))
        return [f"--{name.replace('_', '-')}" for name in set_]

    tables, building = given("plan", "periods", "cost", "price"), given("out", "no_compile")
    if options.example is not None:
        others = [*([options.spec] if options.spec else []), *given("target"), *building, *tables]
        return f"--example only prints a spec; leave out {others[0]}" if others else ""
    if options.spec is None:
        return "name a spec, or print one to start from with --example"
    if tables and building:
        return f"{tables[0]} prints a table and writes nothing; leave out {building[0]}"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gptoss-build",
        description="Check a spec, resolve it for a target, construct its model without memory, "
        "compile its kernel for the card, and write the build directory that gptoss-train runs. "
        "No GPU is needed.",
        epilog="Exit codes: 0 built, or a table printed; 2 bad input, and nothing is written; 1 a "
        "failure of ours. A spec that does not fit its card gets its tables too, and 2.",
    )
    parser.add_argument("spec", metavar="SPEC", nargs="?", help="the spec, a YAML file")
    parser.add_argument(
        "--target",
        metavar="T",
        help="card (h200), architecture (sm80: its reference card) or cpu; wins over the spec's",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="the build directory; default build/<name>-<target>; an older build is replaced",
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="leave out the kernel's compile, which needs triton; the plan records it",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the plan's main figures; writes nothing, compiles nothing, needs no torch",
    )
    parser.add_argument(
        "--periods",
        action="store_true",
        help="print memory, FLOPs and predicted time of each checkpoint period; writes nothing",
    )
    parser.add_argument(
        "--cost",
        action="store_true",
        help="print predicted time, GPU-hours and assumptions on every card; writes nothing",
    )
    parser.add_argument(
        "--price",
        metavar="P",
        type=_price,
        help="what an hour of a card costs, in any currency; implies --cost",
    )
    parser.add_argument(
        "--example",
        metavar="NAME",
        help="print a spec to start from: tiny, gpt_oss_smoke or gpt_oss_lite",
    )
    add_version(parser)
    return parser


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no price an hour; give a number from 0 on")
    return price
