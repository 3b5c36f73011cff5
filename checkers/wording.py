"""Numbers as people read them, for messages."""

from __future__ import annotations

from collections.abc import Iterable

GIB = 2**30
MIB = 2**20
NARROWER = "narrow the model; no other change is enough"
"""What to do where no setting and no card makes a model fit."""
_FAR = 10_000


def gib(size: float) -> str:
    """Bytes as GiB with two decimals, `20.73 GiB`, or as MiB below one: `12.3 MiB`."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def either(values: Iterable[object]) -> str:
    """A choice in words: `2, 4 or 8`."""
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def divisors_near(number: int, wanted: int, most: int | None = None) -> tuple[int, ...]:
    """The divisors of `number` next to `wanted`, below and above it, up to `most`; 1 is one.

    Far from `wanted` nothing is looked for: a spec can hold numbers of any size.
    """
    most = number if most is None else most
    wanted = min(wanted, most)
    down = range(wanted, max(wanted - _FAR, 0), -1)
    up = range(wanted, min(wanted + _FAR, most + 1))
    below = next((divisor for divisor in down if number % divisor == 0), 1)
    above = next((divisor for divisor in up if number % divisor == 0), number)
    return tuple(divisor for divisor in sorted({below, above}) if divisor <= most)


def multiples_near(number: int, unit: int, most: int) -> tuple[int, ...]:
    """The multiples of `unit` next to `number`, from one `unit` to `most`."""
    low = number // unit * unit
    return tuple(value for value in (low, low + unit) if unit <= value <= most)
