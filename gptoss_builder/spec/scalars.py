"""Plain YAML scalars by the core schema of YAML 1.2, in decimal only.

What YAML readers of different versions take for different values stays text here, so that
a number field refuses it; `lookalike` then says what it may have been meant to be.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_FIRST = frozenset("+-.0123456789")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_MAX_DIGITS = 400
"""Integers above this are infinite: no double holds them, and Python's int() has a limit."""

_TRUE_WORDS = frozenset({"y", "yes", "on", "true"})
_FALSE_WORDS = frozenset({"n", "no", "off", "false"})
_UNITS = {"k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


class Lookalike(NamedTuple):
    """A text that somebody may take for a number or a truth value."""

    what: str
    """What is read, as the end of a sentence that begins with the text."""
    meant: tuple[str, ...]
    """What it may stand for, the likeliest first."""


def read_plain(text: str) -> Scalar:
    """Give the value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _FIRST:
        return text
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            return -math.inf if text[0] == "-" else math.inf
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text) + 0.0  # −0.0 becomes 0.0: equal specs are equal in every byte
    return text


def same_key(text: str) -> tuple[str, Scalar]:
    """Give what YAML 1.1 readers would tell a plain key apart by: `yes` and `true` are one."""
    lowered = text.lower()
    if lowered in _TRUE_WORDS:
        return "bool", True
    if lowered in _FALSE_WORDS:
        return "bool", False
    value = read_plain(text)
    return ("text", text) if isinstance(value, str) else ("number", value)


def lookalike(text: str) -> Lookalike | None:
    """Say what a text that is no number may have been meant to be, if that can be told."""
    sign, digits = ("-", text[1:]) if text[:1] == "-" else ("", text.removeprefix("+"))
    for read in (_leading_zero, _other_base, _base_60, _separators, _comment, _unit):
        found = read(digits)
        if found is not None:
            return Lookalike(found.what, tuple(sign + meant for meant in found.meant))
    return None


def truth_word(text: str) -> str | None:
    """Give `true` or `false` for a word that YAML 1.1 takes for it."""
    lowered = text.lower()
    if lowered in _TRUE_WORDS:
        return "true"
    return "false" if lowered in _FALSE_WORDS else None


def _leading_zero(text: str) -> Lookalike | None:
    if not re.fullmatch(r"0[0-9]{1,30}", text):
        return None
    decimal = str(int(text))
    if re.search("[89]", text):
        return Lookalike("which has a leading zero", (decimal,))
    octal = str(int(text, 8))
    what = f"which is {octal} to some YAML readers and {decimal} to others"
    return Lookalike(what, (decimal, octal) if decimal != octal else (decimal,))


def _other_base(text: str) -> Lookalike | None:
    if not re.fullmatch(r"0(?:[xX][0-9a-fA-F]{1,16}|[oO][0-7]{1,21}|[bB][01]{1,64})", text):
        return None
    return Lookalike("which is not decimal", (str(int(text, 0)),))


def _base_60(text: str) -> Lookalike | None:
    if not re.fullmatch(r"[0-9]{1,9}(?::[0-5]?[0-9]){1,4}", text):
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return Lookalike(f"which is {total} to some YAML readers and text to others", (str(total),))


def _separators(text: str) -> Lookalike | None:
    if not re.fullmatch(r"[0-9][0-9_,']{0,30}(?:\.[0-9_]{1,30})?", text):
        return None
    bare = re.sub("[_,']", "", text)
    if bare == text or not isinstance(read_plain(bare), (int, float)):
        return None
    return Lookalike("which has separators between its digits", (bare,))


def _comment(text: str) -> Lookalike | None:
    number, hash_sign, _ = text.partition("#")
    if not hash_sign or not number or not isinstance(read_plain(number), (int, float)):
        return None
    return Lookalike("which is all text: a comment needs a space before `#`", (number,))


def _unit(text: str) -> Lookalike | None:
    match = re.fullmatch(r"([0-9]{1,15}) ?([kKmMgGbBtT])i?[bB]?", text)
    if match is None:
        return None
    count, power = int(match[1]), _UNITS[match[2].lower()]
    meant = (str(count * 1000**power), str(count * 1024**power))
    return Lookalike("and numbers here have no units", meant)
