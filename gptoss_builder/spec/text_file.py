"""Bytes of a spec file to text: UTF-8 whatever the locale, and never more than a spec needs."""

from __future__ import annotations

from pathlib import Path

from gptoss_builder.errors import InputError
from gptoss_builder.findings import Position
from gptoss_builder.spec.problems import NOT_UTF8, TOO_LARGE, Fault
from gptoss_builder.spec.yaml_errors import lines_of

MAX_BYTES = 256 * 1024
"""Bytes of one file; the shipped specs have two thousand."""

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_bytes(path: Path) -> bytes:
    """Read a file, at most one byte more than the limit.

    Raises:
        InputError: there is no such file, it is a folder, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{path}: cannot be read: {reason}") from None


def decode(content: bytes | str) -> tuple[str, Fault | None]:
    """Give the text, without a byte order mark, and what is wrong with it as text."""
    if len(content) > MAX_BYTES:
        message = f"the file has more than {MAX_BYTES // 1024} KiB, and a spec has a few"
        return "", Fault(TOO_LARGE, message, "name the right file, or shorten this one")
    if isinstance(content, str):
        return content.removeprefix("\ufeff"), None
    if content.startswith(_UTF16):
        message, fix = "the file is UTF-16, and a spec is UTF-8", "save it as UTF-8"
        return "", Fault(NOT_UTF8, message, fix)
    try:
        return content.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        offset = len(content) - len(error.object) + error.start  # the codec drops the BOM first
        before = lines_of(content[:offset].decode("utf-8-sig"))
        message = f"byte {offset} (0x{content[offset]:02x}, counted from 0) is not UTF-8"
        position = Position(len(before), len(before[-1]) + 1)
        text = content.decode("utf-8-sig", errors="replace")
        return text, Fault(NOT_UTF8, message, "save the file as UTF-8", position=position)
