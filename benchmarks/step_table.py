"""The table of training steps: a line a row, and what alternatives compare to."""

from __future__ import annotations

from typing import Any

Found = dict[str, Any]
"""What one row came to, as it is written to the JSON file."""
HEADER = (
    f"{'row':<18}{'params':>7}{'active':>7}{'ms':>8}{'predicted':>10}{'off':>7}{'tokens/s':>10}"
    f"{'MFU':>7}{'alloc GiB':>10}{'reserved':>9}{'planned':>8}{'first s':>8}"
)


def ratios(found: Found, before: list[Found]) -> dict[str, float]:
    """Tokens a second of our rows of the same shape, over those of an alternative."""
    return {
        each["row"]: each["tokens_per_second"] / found["tokens_per_second"]
        for each in before
        if not each["alternative"] and each["shape"] == found["shape"] and "ms" in each
    }


def line(found: Found) -> str:
    """One line below `HEADER`; what was not found stays empty."""

    def cell(name: str, form: str, width: int) -> str:
        return f"{format(found[name], form):>{width}}" if name in found else " " * width

    return (
        f"{found['row']:<18}{found['parameters'] / 1e6:>6.0f}M{found['active'] / 1e6:>6.0f}M"
        f"{cell('ms', '.1f', 8)}{cell('predicted_ms', '.1f', 10)}"
        f"{cell('prediction_error', '+.1%', 7)}{cell('tokens_per_second', ',.0f', 10)}"
        f"{cell('mfu', '.1%', 7)}{cell('allocated_gib', '.2f', 10)}"
        f"{cell('reserved_gib', '.2f', 9)}{cell('planned_gib', '.2f', 8)}"
        f"{cell('first_s', '.1f', 8)}"
    )
