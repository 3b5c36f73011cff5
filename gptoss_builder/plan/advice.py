"""What the memory estimate says in words: the peak's parts, what would fit, what periods cost."""

from __future__ import annotations

from gptoss_builder.errors import InputError
from gptoss_builder.plan.changes import Change, serving_changes, training_changes
from gptoss_builder.plan.fit import Period, fastest_period, period_table, room, sqrt_period
from gptoss_builder.plan.schema import MemoryEstimate, Plan

GIB = 2**30
PARTS = 4
"""Largest parts of the peak that a message names."""


def breakdown(estimate: MemoryEstimate, parts: int = PARTS) -> str:
    """The largest parts of the peak: `logits of a chunk 1.95 GiB, …`."""
    peak = next(moment for moment in estimate.moments if moment.name == estimate.peak)
    return ", ".join(f"{item.name} {item.bytes / GIB:.2f} GiB" for item in peak.items[:parts])


def what_trains(plan: Plan, available: int) -> str:
    """The changes of which each makes training fit in `available` bytes; "" if none does."""
    return ", or ".join(map(_words, training_changes(plan, available)))


def what_serves(plan: Plan, available: int) -> str:
    """The changes of which each makes serving fit in `available` bytes; "" if none does."""
    return ", or ".join(map(_words, serving_changes(plan, available)))


def _words(change: Change) -> str:
    settings = " and ".join(f"{field}: {value}" for field, value in change.settings)
    return f"{settings} ({change.total_bytes / GIB:.2f} GiB)"


def period_lines(plan: Plan) -> str:
    """The table over checkpoint periods, fastest first, and which of them to take.

    Again is the part of a forward pass's FLOPs that is computed again, and FLOPs what that adds
    to a step without checkpointing and with `backward: save`; ms is the predicted time of a
    step. A card without a known memory fits nothing and refuses nothing.

    Raises:
        InputError: the spec has no training section.
    """
    rows, training = period_table(plan), plan.spec.training
    if training is None:
        raise InputError(f"{plan.spec.name} has no training section, so it has no periods")
    known, available = plan.target.memory_bytes > 0, room(plan)
    forward, layers = plan.flops.forward.total, plan.spec.model.layers
    least = min(row.step_flops for row in rows)
    lines = [
        f"{plan.spec.name} on {plan.target.name}: checkpoint periods, fastest first",
        f"{'period':>8}{'backward':>12}{'needs GiB':>12}{'again':>8}{'FLOPs':>8}{'ms':>9}  peak",
    ]
    for row in rows:
        own = (row.every, row.backward) == (training.checkpoint_every, plan.execution.backward)
        fits = "" if not known or row.total_bytes <= available else "  does not fit"
        lines.append(
            f"{row.every:>8}{row.backward:>12}{row.total_bytes / GIB:>12.2f}"
            f"{(row.step_flops - least) / forward:>8.1%}{row.extra:>+8.1%}{_ms(row):>9}  {row.peak}"
            f"{fits}{'  ← the spec' if own else ''}"
        )
    lines.append(
        f"√{layers} = {sqrt_period(layers):.2f} is theory.txt's period of least memory; "
        "here memory falls to period 1"
    )
    if known:
        best = fastest_period(plan, available)
        lines.append(
            "no period fits"
            if best is None
            else f"fastest that fits: checkpoint_every {best.every}, backward {best.backward}"
        )
    return "\n".join(lines)


def _ms(row: Period) -> str:
    return "" if row.step_seconds is None else f"{row.step_seconds * 1e3:.1f}"
