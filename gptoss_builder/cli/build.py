"""gptoss-build: check a spec, resolve it for a target, prove the model, write the build."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import resources

from checkers.output.text import render
from checkers.report import Report
from gptoss_builder.build_directory import (
    default_directory,
    refuse_foreign,
    with_data_paths_from_here,
    write_build,
)
from gptoss_builder.cli.build_options import read_options
from gptoss_builder.cli.command import run_command
from gptoss_builder.cli.extras import require_packages
from gptoss_builder.cli.summary import next_steps, summary
from gptoss_builder.errors import GptossError, InputError, LaunchError, MissingTritonError
from gptoss_builder.pipeline import Checked, check
from gptoss_builder.plan.advice import period_lines
from gptoss_builder.plan.aot import compile_kernels, requests_of
from gptoss_builder.plan.cost_table import cost_lines
from gptoss_builder.plan.schema import Plan

SCHEMA_OF_CHECKOUT = "$schema=../docs/spec.schema.json"
"""Where the shipped specs point an editor; elsewhere `gptoss-check --schema` writes the file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 built, 2 bad input, 1 a failure of ours."""
    return run_command("gptoss-build", lambda: _run(read_options(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.example is not None:
        return _print_example(options.example)
    checked = check(options.spec, target=options.target)
    if checked.findings:
        file = checked.document.file
        unplanned = (file,) if checked.plan is None else ()
        report = Report((file,), checked.findings, checked.suppressed, unplanned)
        colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        sys.stderr.write(render(report, colour=colour))
    asked = _tables(checked.plan, options) if checked.plan is not None else []
    for table in asked:  # also of a spec that does not fit: then it helps most
        print(table)
    if checked.errors or checked.plan is None:
        return InputError.exit_code
    if asked:
        return 0
    _build(_plan_from_here(checked), options)
    return 0


def _build(plan: Plan, options: argparse.Namespace) -> None:
    directory = options.out or default_directory(plan)
    try:
        refuse_foreign(directory)
        _prove(plan)
        plan, kernels = _compile(plan, wanted=not options.no_compile)
        write_build(plan, directory, kernels)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"{error.filename}: {error.strerror}; set --out") from error
    except OSError as error:
        raise GptossError(f"the build was not written: {error.strerror or error}") from error
    print(f"{summary(plan)}\n{next_steps(plan, directory)}")


def _tables(plan: Plan, options: argparse.Namespace) -> list[str]:
    """The tables that were asked for in place of a build.

    Raises:
        InputError: the spec has no training section.
    """
    tables = [summary(plan)] if options.plan else []
    if options.periods:
        tables.append(period_lines(plan))
    if options.cost or options.price is not None:
        tables.append(cost_lines(plan, price_per_hour=options.price))
    return tables


def _print_example(name: str) -> int:
    """Print a spec that comes with the package."""
    shipped = {
        entry.name.removesuffix(".yaml"): entry
        for entry in (resources.files("gptoss_builder") / "data" / "specs").iterdir()
    }
    if name not in shipped:
        raise InputError(f"there is no example {name}; there are {', '.join(sorted(shipped))}")
    text = shipped[name].read_text(encoding="utf-8")
    sys.stdout.write(text.replace(SCHEMA_OF_CHECKOUT, "$schema=spec.schema.json"))
    return 0


def _plan_from_here(checked: Checked) -> Plan:
    assert checked.plan is not None
    spec = with_data_paths_from_here(checked.plan.spec, checked.document.directory)
    return checked.plan.model_copy(update={"spec": spec})


def _prove(plan: Plan) -> None:
    """Construct the model without memory and hold its size against the plan.

    Raises:
        InputError: torch is not installed.
        GptossError: the model does not have the planned number of parameters.
    """
    require_packages("building, unlike --plan, --periods and --cost,", "torch")
    from gptoss_builder.model.build import build

    built = sum(parameter.numel() for parameter in build(plan, device="meta").parameters())
    if built != plan.parameters.total:
        raise GptossError(
            f"the model has {built:,} parameters and the plan {plan.parameters.total:,}; "
            "this is a fault of gptoss-builder, please report it"
        )


def _compile(plan: Plan, *, wanted: bool) -> tuple[Plan, dict[str, bytes]]:
    """Compile the plan's kernels for its card, in child processes; no GPU is needed.

    Returns:
        The plan, which records it, and the files of the `kernels` folder: machine code and
        the figures of each kernel.

    Raises:
        MissingTritonError: Triton is not installed.
        LaunchError: a kernel does not compile, spills, or does not fit the card.
    """
    requests = requests_of(plan) if wanted else ()
    if not requests:
        return plan, {}
    try:
        results = compile_kernels(requests)
    except MissingTritonError as error:
        raise MissingTritonError(f"{error}, or build with --no-compile") from error
    files = {}
    for compiled in results:
        report = compiled.report
        if problems := report.problems():
            raise LaunchError(
                f"the W1/W3 kernel for {plan.target.arch} {'; '.join(problems)}; set another "
                "kernel: block, or kernel: auto"
            )
        stem = report.request.file_stem()
        files[f"{stem}.cubin"] = compiled.cubin
        files[f"{stem}.json"] = (report.model_dump_json(indent=2) + "\n").encode()
    return plan.model_copy(update={"kernel_build": "compiled"}), files


if __name__ == "__main__":
    sys.exit(main())
