"""Memory of a plan with some of its settings changed, and the settings that would fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from gptoss_builder.errors import TargetError
from gptoss_builder.plan.counts import count_kv_cache
from gptoss_builder.plan.memory import estimate_memory, training_peak
from gptoss_builder.plan.resolve import decide
from gptoss_builder.plan.schema import Plan
from gptoss_builder.targets import CARDS, Target


def training_bytes(plan: Plan, target: Target | None = None, /, **changes: int) -> int:
    """What training would need in bytes, with fields of `training` changed; 0 without training.

    Raises:
        TargetError: `target` cannot run what the spec asks for.
    """
    if plan.spec.training is None:
        return 0
    training = plan.spec.training.model_copy(update=changes)
    spec = plan.spec.model_copy(update={"training": training})
    execution = decide(spec, target or plan.target)
    return training_peak(spec, execution, plan.parameters).total_bytes


def serving_bytes(plan: Plan, target: Target | None = None, /, **changes: int) -> int:
    """What serving would need in bytes, with fields of `inference` changed; 0 without inference.

    Raises:
        TargetError: `target` cannot run what the spec asks for.
    """
    if plan.spec.inference is None:
        return 0
    inference = plan.spec.inference.model_copy(update=changes)
    spec = plan.spec.model_copy(update={"inference": inference})
    execution = decide(spec, target or plan.target)  # the training's precision counts here
    cache = count_kv_cache(spec, execution.precision)
    serving = spec.model_copy(update={"training": None})
    memory = estimate_memory(serving, execution, plan.parameters, cache)
    return memory.inference.total_bytes if memory.inference is not None else 0


def halved(value: int, fits: Callable[[int], bool]) -> int | None:
    """The value, or its largest half, quarter, … that fits; None if 1 does not."""
    halvings = range(value.bit_length())
    first = bisect_left(halvings, True, key=lambda halving: fits(value >> halving))
    return value >> first if first < len(halvings) else None


def larger_card(plan: Plan, needs: Callable[[Target], int]) -> str | None:
    """The smallest card with more memory than the plan's on which `needs` fits, by name."""
    margin = int(plan.spec.target.margin_gib * 2**30)
    for card in sorted(CARDS.values(), key=lambda card: card.memory_bytes):
        if card.memory_bytes > plan.target.memory_bytes:
            try:
                if needs(card) + margin <= card.memory_bytes:
                    return card.name
            except TargetError:
                continue  # It cannot run what the spec asks for.
    return None
