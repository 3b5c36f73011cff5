"""gptoss-check: every rule on specs and Python files, and what was found in five formats."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from checkers.fix import Repair, repair, unified
from checkers.output import FORMATS, renderer, text
from checkers.paths import collect
from checkers.registry import RULES
from checkers.report import Report
from checkers.run import check_python
from checkers.selection import Selection
from gptoss_builder.cli.command import add_version, run_command
from gptoss_builder.errors import InputError, MissingTritonError
from gptoss_builder.files import write_text
from gptoss_builder.findings import Finding, Severity
from gptoss_builder.pipeline import check
from gptoss_builder.spec.json_schema import packaged_schema
from gptoss_builder.spec.load import read_document
from gptoss_builder.spec.text_file import read_bytes
from gptoss_builder.targets import lookup

CLEAN, FOUND = 0, 1
STDIN = "-"
"""The path that stands for a spec on standard input."""
STDIN_NAME = "<stdin>"
"""What its findings call it."""
MANY = 64
"""Files from which on they are shared out among the processor's cores, where that is cheap."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 clean, 1 errors found, 2 wrong usage."""
    return run_command("gptoss-check", lambda: _run(_parser().parse_args(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.explain is not None or options.list or options.schema:
        return _tell(options)
    if not options.paths:
        raise InputError("name a spec, a Python file or a folder; - is standard input")
    selection = Selection.of(options.select, options.ignore)
    if options.target is not None:
        lookup(options.target)  # A wrong name is said once, before any file is read.
    files = collect(options.paths, options.exclude)
    if options.fix or options.diff:
        _repair(files, options)
        if options.diff:
            return CLEAN
    judged = _judge_all(files, options)
    report = selection.apply(_report(judged))
    _write(report, options)
    unread = [one.unread for one in judged if one.unread]
    for message in unread:
        print(f"gptoss-check: {message}", file=sys.stderr)
    if unread:
        return InputError.exit_code
    return FOUND if report.count(Severity.ERROR) else CLEAN


class _Judged(NamedTuple):
    """What one file adds to the report."""

    name: str
    findings: tuple[Finding, ...]
    suppressed: int = 0
    planned: bool = True
    unread: str = ""
    """Why the file could not be read; the others are reported all the same."""


def _judge_all(files: Sequence[str], options: argparse.Namespace) -> list[_Judged]:
    judge = partial(_judge, target=options.target, compile_kernels=options.compile)
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(files) >= MANY and workers > 1 and STDIN not in files:
        # Forked workers start in milliseconds, with everything imported.
        with multiprocessing.get_context("fork").Pool(
            workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        ) as pool:
            return pool.map(judge, files)
    return [judge(file) for file in files]


def _report(judged: Sequence[_Judged]) -> Report:
    return Report(
        files=tuple(one.name for one in judged if not one.unread),
        findings=tuple(finding for one in judged for finding in one.findings),
        suppressed=sum(one.suppressed for one in judged),
        unplanned=tuple(one.name for one in judged if not one.planned),
    )


def _judge(file: str, *, target: str | None, compile_kernels: bool) -> _Judged:
    try:
        if file.endswith(".py"):
            return _Judged(file, tuple(check_python(file)))
        content = _content(file)
    except InputError as error:
        return _Judged(file, (), unread=str(error))
    name = STDIN_NAME if file == STDIN else file
    try:
        checked = check(name, target=target, text=content, compile_kernels=compile_kernels)
    except MissingTritonError as error:
        raise MissingTritonError(f"{error}, or leave out --compile") from error
    return _Judged(
        checked.document.file, checked.findings, checked.suppressed, checked.plan is not None
    )


def _content(file: str) -> bytes:
    if file != STDIN:
        return read_bytes(Path(file))
    if sys.stdin is None:  # closed by the shell
        raise InputError("standard input is closed")
    return sys.stdin.buffer.read()


def _repair(files: Sequence[str], options: argparse.Namespace) -> None:
    for file in files:
        if file.endswith(".py"):
            continue
        if file == STDIN and not options.diff:
            raise InputError("--fix cannot write standard input; use --diff with it")
        content = _content(file)
        repaired = _repaired(STDIN_NAME if file == STDIN else file, content, options.target)
        if options.diff:
            _print(unified(repaired))
        elif repaired.count:
            _overwrite(Path(file), repaired.after, marked=content.startswith(BOM_UTF8))
            print(f"{file}: {repaired.count} repaired", file=sys.stderr)


def _repaired(name: str, content: bytes, target: str | None) -> Repair:
    document = read_document(name, text=content)

    def findings(text: str) -> tuple[Finding, ...]:
        return check(name, target=target, text=text).findings

    return repair(name, document.text, findings)


def _overwrite(path: Path, after: str, *, marked: bool) -> None:
    place = path.resolve()
    mode = place.stat().st_mode
    # Renaming a new file over it would pass over its being read-only.
    if not os.access(place, os.W_OK):
        raise InputError(f"{path} cannot be written: it is read-only")
    try:
        write_text(place, ("\ufeff" if marked else "") + after)
        place.chmod(mode)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _write(report: Report, options: argparse.Namespace) -> None:
    if options.output_file is None and options.format == "text":
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _print(text.render(report, colour=colour))
        return
    # A file name can hold what UTF-8 cannot.
    rendered = renderer(options.format)(report).encode(errors="replace").decode()
    if options.output_file is None:
        _print(rendered, encoding="utf-8")
        return
    try:
        _put(Path(options.output_file), rendered)
    except OSError as error:
        raise InputError(f"{options.output_file} cannot be written: {error.strerror}") from error


def _put(path: Path, content: str) -> None:
    if path.exists() and not path.is_file():  # /dev/stdout, say, must not be replaced by a file
        path.write_text(content, encoding="utf-8")
    else:
        write_text(path.resolve(), content)


def _print(content: str, encoding: str | None = None) -> None:
    # A terminal of another encoding shows what it can; programs are given UTF-8.
    if encoding is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding=encoding, errors="replace")
    sys.stdout.write(content)
    sys.stdout.flush()  # before what is said on standard error


def _tell(options: argparse.Namespace) -> int:
    """Print what the package says of itself; nothing is checked."""
    if options.schema:
        schema = json.dumps(packaged_schema(), indent=2, ensure_ascii=False)
        _print(f"{schema}\n", encoding="utf-8")
    elif options.list:
        _print("".join(f"{rule.code} {rule.severity:<6} {rule.title}\n" for rule in RULES.values()))
    else:
        _print(_explained(options.explain))
    return CLEAN


def _explained(code: str) -> str:
    rule = RULES.get(code.upper())
    if rule is None:
        raise InputError(f"there is no rule {code}; gptoss-check --list prints every one")
    indent = "\n    "
    return (
        f"{rule.code} ({rule.severity}): {rule.title}\n\n{fill(rule.why, 88)}\n\n"
        f"Refused:{indent}{rule.bad.replace(chr(10), indent)}\n\n"
        f"Accepted:{indent}{rule.good.replace(chr(10), indent)}\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gptoss-check",
        description="Check model specs (.yaml, .yml) and Python source (.py). No GPU is needed, "
        "and nothing that is checked is imported or run.",
        epilog="Exit codes: 0 clean or advice only, 1 errors found, 2 wrong usage or no file.",
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="file, folder, or - for a spec on standard input")
    add("--target", metavar="T", help="card (h200), architecture (sm80) or cpu; wins over the spec")
    add("--select", metavar="CODES", help="only these rules or families (MO001,KL) and hard rules")
    add("--ignore", metavar="CODES", help="not these rules or families; hard rules cannot be")
    add("--exclude", metavar="GLOB", action="append", default=[], help="leave out matching paths")
    add("--format", choices=FORMATS, default="text", help="default: text")
    add("--output-file", metavar="F", help="write the report there instead of printing it")
    add("--explain", metavar="CODE", help="print a rule, its reason and its examples")
    add("--list", action="store_true", help="print every rule's code and title")
    add("--schema", action="store_true", help="print the JSON Schema of a spec, for an editor")
    add("--compile", action="store_true", help="compile the kernel for the card, without one")
    add("--fix", action="store_true", help="apply the repairs that leave no choice")
    add("--diff", action="store_true", help="show what --fix would do, and write nothing")
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
