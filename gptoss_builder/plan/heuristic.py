"""The memory heuristic of theory.txt, part B section 6.3: printed for comparison only.

On an H200 it was low by up to 3.8 times (75.8 GiB measured against 20.73), and it charges a
checkpointed layer more than a stored one, so nothing here decides anything: `plan.memory` does.
"""

from __future__ import annotations

from gptoss_builder.plan.schema import Heuristic
from gptoss_builder.spec.schema import Spec

GIB = 2**30
_BF16 = 2
_A100_TOTAL_GIB = 80.0


def card_overhead_gib(total_gib: float) -> float:
    """The heuristic's overhead of a card, in GiB: 17% of its memory, from 2.0 to 13.7."""
    return min(13.7, max(2.0, 0.17 * total_gib))


def store_factor(checkpoint_every: int) -> float:
    """Part of the activations that the heuristic keeps at a checkpoint period; 0 is none."""
    if checkpoint_every == 0:
        return 1.0
    return 1 / checkpoint_every + (1 - 1 / checkpoint_every) / 2


def estimate_gib(spec: Spec, parameters: int, *, overhead_gib: float) -> float:
    """16·P + KV + s·activations + overhead, in GiB; KV holds every layer at the context.

    Raises:
        ValueError: the spec has no training.
    """
    training = spec.training
    if training is None:
        raise ValueError("the heuristic is about training, and the spec has none")
    model, attention, moe = spec.model, spec.model.attention, spec.model.moe
    tokens = training.micro_batch * training.context
    entry = 2 * attention.kv_heads * attention.head_dim * _BF16
    cache = model.layers * tokens * entry
    width = model.d_model + 3 * (moe.top_k + moe.shared_experts) * moe.d_ff
    activations = model.layers * tokens * _BF16 * width
    stored = store_factor(training.checkpoint_every) * activations
    return (16 * parameters + cache + stored) / GIB + overhead_gib


def heuristic(spec: Spec, parameters: int) -> Heuristic | None:
    """Both of its published variants for a spec with `parameters`; None without training."""
    if spec.training is None:
        return None
    return Heuristic(
        gib=estimate_gib(spec, parameters, overhead_gib=2.0),
        a100_overhead_gib=estimate_gib(
            spec, parameters, overhead_gib=card_overhead_gib(_A100_TOTAL_GIB)
        ),
    )
