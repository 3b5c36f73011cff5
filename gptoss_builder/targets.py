"""Cards and architectures: memory, bandwidth, rates, shared memory, registers."""

from __future__ import annotations

from typing import Literal

from gptoss_builder.spec.schema import Frozen

ArchName = Literal["cpu", "sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]


class Target(Frozen):
    """One card, as the plan carries it."""

    name: str
    """Name in the table: `h200`, `a100-80gb`, `cpu`."""
    arch: ArchName
    """Architecture of its multiprocessors; `cpu` for none."""
    memory_bytes: int
    """Memory that a program can use; 0 for `cpu`, where no limit is assumed."""
    multiprocessors: int
    """Streaming multiprocessors; 0 for `cpu`."""
