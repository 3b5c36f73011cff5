"""A tape of what is held and dropped, in order, and the largest sum on the way."""

from __future__ import annotations

from typing import NamedTuple

from gptoss_builder.plan.schema import MemoryItem, Moment

BLOCK = 512
"""Bytes that the caching allocator rounds every request up to."""
REST = "everything smaller"


def rounded(size: int) -> int:
    """`size` as the caching allocator counts it."""
    return -(-size // BLOCK) * BLOCK


class Tape:
    """Named tensors that come and go; `peak` is the largest sum seen."""

    __slots__ = ("_at", "_log", "_momentary", "_start", "items", "live", "peak")

    def __init__(self, items: dict[str, int] | None = None) -> None:
        self.items = dict(items or {})
        self.live = self.peak = sum(self.items.values())
        # The peak's terms are asked for once, so they are replayed instead of copied each time.
        self._start = self.items.copy()
        self._log: list[tuple[str, int]] = []
        self._at = 0
        self._momentary: tuple[str, int] | None = None

    def hold(self, name: str, size: int) -> None:
        """A tensor of `size` bytes appears; one more of a name that is there adds to it."""
        size = -(-size // BLOCK) * BLOCK
        self.items[name] = self.items.get(name, 0) + size
        self._log.append((name, size))
        self.live += size
        if self.live > self.peak:
            self.peak = self.live
            self._at, self._momentary = len(self._log), None

    def drop(self, *names: str) -> None:
        """Tensors die."""
        for name in names:
            size = self.items.pop(name)
            self._log.append((name, -size))
            self.live -= size

    def shrink(self, name: str, size: int) -> None:
        """A part of what is held under `name` dies."""
        self.items[name] -= size
        self._log.append((name, -size))
        self.live -= size

    def rename(self, old: str, new: str) -> None:
        """A tensor is written over in place and is something else now."""
        size = self.items[old]
        self.drop(old)
        self.hold(new, size)

    def touch(self, name: str, size: int) -> None:
        """A tensor appears and dies before anything else happens."""
        if self.live + size > self.peak:
            self.peak = self.live + size
            self._at, self._momentary = len(self._log), (name, size)

    def peak_items(self) -> dict[str, int]:
        """The terms of the peak."""
        items = self._start.copy()
        momentary = [self._momentary] if self._momentary is not None else []
        for name, size in [*self._log[: self._at], *momentary]:
            items[name] = items.get(name, 0) + size
        return items


class Sum(NamedTuple):
    """What is alive at one moment, by name of the tensors."""

    name: str
    items: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.items.values())

    def moment(self) -> Moment:
        """As the plan shows it: largest first, what is below a thousandth summed up."""
        total = self.total
        shown = {part: size for part, size in self.items.items() if size > total // 1000}
        rest = total - sum(shown.values())
        if rest:
            shown[REST] = rest
        ordered = sorted(shown.items(), key=lambda item: -item[1])
        return Moment(
            name=self.name,
            allocated_bytes=total,
            items=tuple(MemoryItem(name=part, bytes=size) for part, size in ordered),
        )
