"""Damaged specs, reproducible: what a slip, a bad disk or somebody hostile makes of one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from tests.spec.examples import LEGAL, SHIPPED

TOKENS = [
    *"[]{}:,-?&*!|>'\"%@`#~=\t\r\x00\ufeffé😀\u2028\x85",
    *("<<", "---", "...", "&a", "*a", "!!int", "!!python/object:x", "{{x}}", "? &x *x"),
    *("null", "true", "yes", ".nan", ".inf", "-.inf", "1e999", "-0", "010", "0x1f", "1:30", "1_0"),
    *("999999999999999999999", "model:", "layers:", "top_k: 2"),
]


def flip(text: bytes, random: random.Random) -> bytes:
    """Change a few bytes."""
    damaged = bytearray(text)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    return bytes(damaged)


def truncate(text: bytes, random: random.Random) -> bytes:
    """Cut the end off."""
    return text[: random.randrange(len(text))]


def splice(text: bytes, random: random.Random) -> bytes:
    """Put a special token somewhere."""
    at = random.randrange(len(text))
    return text[:at] + random.choice(TOKENS).encode() + text[at + random.randint(0, 3) :]


def value(text: bytes, random: random.Random) -> bytes:
    """Put something else in place of a line's value."""
    lines = text.split(b"\n")
    at = random.randrange(len(lines))
    key, colon, _ = lines[at].partition(b":")
    lines[at] = key + colon + b" " + random.choice(TOKENS).encode()
    return b"\n".join(lines)


def shuffle(text: bytes, random: random.Random) -> bytes:
    """Move, double, drop or indent lines."""
    lines = text.split(b"\n")
    for _ in range(random.randint(1, 3)):
        line = lines.pop(random.randrange(len(lines)))
        for copy in [line] * random.randint(0, 2):
            indent = b" " * random.randint(0, 3)
            lines.insert(random.randrange(len(lines) + 1), indent + copy)
    return b"\n".join(lines)


def nest(text: bytes, random: random.Random) -> bytes:
    """Put a deep or a broad structure somewhere."""
    depth = random.choice([3, 31, 33, 200, 5000])
    opening, closing = random.choice(
        [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[1,", "]")]
    )
    piece = opening * depth + "x" + closing * random.choice([0, depth])
    at = random.randrange(len(text))
    return text[:at] + piece.encode() + text[at:]


def number(text: bytes, random: random.Random) -> bytes:
    """Put a huge number in place of a digit."""
    digits = [at for at, byte in enumerate(text) if 48 <= byte <= 57]
    at = random.choice(digits)
    huge = random.choice(
        ["9" * random.choice([20, 310, 5000]), "1e308", "1e309", "0." + "0" * 400 + "1"]
    )
    return text[:at] + huge.encode() + text[at + 1 :]


def alias(text: bytes, random: random.Random) -> bytes:
    """Put a tower of aliases before the text."""
    names = [f"x{level}" for level in range(random.randint(2, 40))]
    tower = f"{names[0]}: &{names[0]} [a, a]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n"
        for below, name in itertools.pairwise(names)
    )
    return tower.encode() + text


def repeat(text: bytes, random: random.Random) -> bytes:
    """Write a piece of the text very often."""
    at = random.randrange(len(text))
    piece = text[at : at + random.randint(1, 30)]
    return text[:at] + piece * random.choice([10, 1000, 9000]) + text[at:]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    truncate,
    splice,
    value,
    shuffle,
    nest,
    number,
    alias,
    repeat,
)


def mutated(count: int, seed: int) -> Iterator[bytes]:
    """Yield damaged specs, each with one to three mutations."""
    source = random.Random(seed)
    texts = [LEGAL.encode(), *(path.read_bytes() for path in SHIPPED)]
    for _ in range(count):
        text = source.choice(texts)
        for mutate in source.choices(MUTATIONS, k=source.randint(1, 3)):
            text = mutate(text + b"\n1\n1", source)  # never too short to be damaged again
        yield text
