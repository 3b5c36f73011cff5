"""Memory of a plan with one of its settings changed."""

from __future__ import annotations

from gptoss_builder.plan.memory import estimate_memory
from gptoss_builder.plan.resolve import decide
from gptoss_builder.plan.schema import Plan


def training_bytes(plan: Plan, **changes: int) -> int:
    """What training would need in bytes, with fields of `training` changed; 0 without training."""
    if plan.spec.training is None:
        return 0
    training = plan.spec.training.model_copy(update=changes)
    spec = plan.spec.model_copy(update={"training": training})
    memory = estimate_memory(spec, decide(spec, plan.target), plan.parameters, cache=None)
    return memory.training.total_bytes if memory.training is not None else 0
