"""Preparing data: `python -m gptoss_builder.cli.prepare`.

`stdlib` copies the source of Python's standard library, which is on any machine that runs this
project, into a folder of text; `shards` tokenizes text once into token shards.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from gptoss_builder.cli.output import show_what_it_can
from gptoss_builder.errors import DataError, GptossError
from gptoss_builder.files import new_directory
from gptoss_builder.tokenizer import load_tokenizer
from gptoss_builder.train.corpus import text_files, tokenize
from gptoss_builder.train.shards import MANIFEST, write_shards

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
    options = _parser().parse_args(arguments)
    show_what_it_can()
    try:
        if options.command == "stdlib":
            _refuse_other(options.out, "*.py.txt")
            files, size = stdlib_text(options.out)
            print(f"{options.out}: {files} files, {size / 1e6:.1f} MB of Python source")
        else:
            _refuse_other(options.out, MANIFEST)
            tokenizer = load_tokenizer(options.tokenizer)
            documents = tokenize(text_files(options.text), tokenizer)
            tokens = write_shards(
                options.out, documents, vocab=tokenizer.size, tokenizer=tokenizer.identity
            )
            print(f"{options.out}: {tokens:,} tokens, vocabulary {tokenizer.size:,}")
    except GptossError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


def _refuse_other(directory: Path, ours: str) -> None:
    if not directory.exists():
        return
    if not directory.is_dir() or (any(directory.iterdir()) and not any(directory.glob(ours))):
        raise DataError(f"{directory} holds something else and is left as it is; choose another")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gptoss_builder.cli.prepare")
    commands = parser.add_subparsers(dest="command", required=True)
    stdlib = commands.add_parser("stdlib", help="the source of Python's standard library, as text")
    stdlib.add_argument("out", type=Path, metavar="OUT_DIR")
    shards = commands.add_parser("shards", help="tokenize text once, into token shards")
    shards.add_argument("text", type=Path, metavar="TEXT", help="a text file or a folder of them")
    shards.add_argument("out", type=Path, metavar="OUT_DIR")
    shards.add_argument(
        "--tokenizer", default="bytes", metavar="PATH", help="bytes (default) or a tokenizer.json"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
