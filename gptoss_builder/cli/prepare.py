"""Preparing data: `gptoss-prepare`.

`stdlib` copies the source of Python's standard library, which is on any machine that runs this
project, into a folder of text; `collect` does so with source code and documentation from any
folders. `bpe` trains a vocabulary on text, and `shards` tokenizes text once into token shards.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from gptoss_builder.cli.arguments import count
from gptoss_builder.cli.command import add_version, run_command
from gptoss_builder.cli.extras import require_packages
from gptoss_builder.errors import DataError
from gptoss_builder.files import new_directory
from gptoss_builder.tokenizer import load_tokenizer
from gptoss_builder.train.collect import MARK, MAX_BYTES, MIN_BYTES, SUFFIXES, collect

LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"}
    | {"encodings", "pydoc_data"}  # tables, not code
)
"""Folders of the standard library's tree whose files are not the library's code."""


def stdlib_text(directory: Path, *, source: Path | None = None) -> tuple[int, int]:
    """Copy the standard library's Python files into `directory`, whole or not at all.

    Only files in UTF-8, which all but a few are.

    Args:
        directory: replaced if it is there.
        source: the library; that of the running interpreter if None.

    Returns:
        Files and bytes written.

    Raises:
        DataError: no file is found, as in an installation without sources.
        OSError: `directory` cannot be written.
    """
    root = source if source is not None else Path(sysconfig.get_path("stdlib"))
    files = sorted(
        file
        for file in root.rglob("*.py")
        if not LEFT_OUT.intersection(file.relative_to(root).parts[:-1])
    )
    if not files:
        raise DataError(f"{root} holds no Python source; give a text folder of your own instead")
    count = size = 0
    with new_directory(directory) as fresh:
        for file in files:
            try:
                text = file.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            name = "-".join(file.relative_to(root).parts)
            (fresh / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
            count += 1
            size += len(text.encode())
    return count, size


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 is bad input, 1 a failure to write."""
    return run_command("gptoss-prepare", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    options.run(options)
    return 0


def _stdlib(options: argparse.Namespace) -> None:
    _refuse_other(options.out, "*.py.txt")
    files, size = stdlib_text(options.out)
    print(f"{options.out}: {files} files, {size / 1e6:.1f} MB of Python source")


def _collect(options: argparse.Namespace) -> None:
    _refuse_other(options.out, MARK)
    out = options.out.resolve()
    for folder in options.folders:
        if out.is_relative_to(folder.resolve()):
            raise DataError(f"{options.out} lies in {folder}, from which it would be filled")
        if folder.resolve().is_relative_to(out):
            raise DataError(f"{folder} lies in {options.out}, which would be replaced")
    found = collect(
        options.out,
        options.folders,
        progress=lambda folder: print(f"reading {folder}", file=sys.stderr, flush=True),
    )
    print(
        f"{options.out}: {found.files:,} files, {found.size_bytes / 1e6:.1f} MB; left out "
        f"{found.duplicates:,} duplicates and {found.refused:,} that are not text of a fitting size"
    )


def _bpe(options: argparse.Namespace) -> None:
    require_packages("training a vocabulary", "numpy")
    from gptoss_builder.train.corpus import text_files
    from gptoss_builder.train.vocabulary import train_bpe

    if options.out.is_dir():
        raise DataError(f"{options.out} is a folder; name the tokenizer.json to write")
    if not options.out.parent.is_dir():
        raise DataError(f"there is no folder {options.out.parent}; make it first")
    files = text_files(_existing(options.text))
    limit = None if options.max_mb is None else options.max_mb * 10**6
    size, learned = train_bpe(
        options.out, files, vocab=options.vocab, max_bytes=limit, progress=sys.stderr.isatty()
    )
    fewer = "" if size == options.vocab else f" of {options.vocab:,}: no more pair repeats"
    print(f"{options.out}: vocabulary {size:,}{fewer}; learned from {learned / 1e6:.1f} MB of text")


def _shards(options: argparse.Namespace) -> None:
    require_packages("writing token shards", "numpy")
    from gptoss_builder.train.corpus import text_files, tokenize
    from gptoss_builder.train.shards import MANIFEST, write_shards

    _refuse_other(options.out, MANIFEST)
    tokenizer = load_tokenizer(options.tokenizer)
    files = text_files(_existing(options.text))
    console = Console(stderr=True)
    shown = track(files, "tokenizing", console=console, disable=not console.is_terminal)
    tokens = write_shards(
        options.out,
        tokenize(shown, tokenizer),
        vocab=tokenizer.size,
        tokenizer=tokenizer.identity,
    )
    print(f"{options.out}: {tokens:,} tokens, vocabulary {tokenizer.size:,}")


def _existing(text: Path) -> Path:
    if not text.exists():
        raise DataError(f"{text} is not there; give a text file or a folder of them")
    return text


def _refuse_other(directory: Path, ours: str) -> None:
    if directory.name in {"", ".."}:
        raise DataError(f"{directory} cannot be replaced as a whole; name a folder in it")
    if not directory.exists():
        return
    if not directory.is_dir() or (any(directory.iterdir()) and not any(directory.glob(ours))):
        raise DataError(f"{directory} holds something else and is left as it is; choose another")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gptoss-prepare",
        description="Make training data: text, a vocabulary, token shards.",
        epilog="Exit codes: 0 done; 1 nothing could be written; 2 bad input; 130 Ctrl-C.",
    )
    commands = parser.add_subparsers(required=True)
    stdlib = commands.add_parser("stdlib", help="the source of Python's standard library, as text")
    stdlib.add_argument("out", type=Path, metavar="OUT_DIR")
    stdlib.set_defaults(run=_stdlib)
    found = commands.add_parser(
        "collect",
        help="source code and documentation from folders, as text",
        description=f"Copy files that end in {' '.join(sorted(SUFFIXES))} into one folder: UTF-8 "
        f"of {MIN_BYTES} to {MAX_BYTES:,} bytes, equal files once, nothing minified.",
    )
    found.add_argument("out", type=Path, metavar="OUT_DIR")
    found.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    found.set_defaults(run=_collect)
    bpe = commands.add_parser("bpe", help="train a byte-level BPE vocabulary on text")
    bpe.add_argument("text", type=Path, metavar="TEXT", help="a text file or a folder of them")
    bpe.add_argument("out", type=Path, metavar="TOKENIZER_JSON")
    bpe.add_argument("--vocab", type=count, required=True, metavar="IDS", help="model.vocab")
    bpe.add_argument(
        "--max-mb", type=count, metavar="MB", help="learn from the first MB of text only"
    )
    bpe.set_defaults(run=_bpe)
    shards = commands.add_parser("shards", help="tokenize text once, into token shards")
    shards.add_argument("text", type=Path, metavar="TEXT", help="a text file or a folder of them")
    shards.add_argument("out", type=Path, metavar="OUT_DIR")
    shards.add_argument(
        "--tokenizer", default="bytes", metavar="PATH", help="bytes (default) or a tokenizer.json"
    )
    shards.set_defaults(run=_shards)
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
