"""Small specs and their plans, for tests of the model."""

from __future__ import annotations

from typing import Any

import torch

from gptoss_builder.model.build import build
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Execution, Plan
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import CPU

YARN = {"factor": 8.0, "original_context": 64, "beta_fast": 4.0, "beta_slow": 1.0}


def tiny_spec(
    *,
    attention: dict[str, Any] | None = None,
    moe: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **model: Any,
) -> Spec:
    """Three layers, window, full, window, with awkward sizes; every feature is on."""
    return Spec.model_validate(
        {
            "spec": 1,
            "name": "tiny",
            "seed": 3,
            "model": {
                "vocab": 61,
                "d_model": 24,
                "layers": 3,
                "init_std": 0.3,
                "attention": {
                    "heads": 4,
                    "kv_heads": 2,
                    "head_dim": 16,
                    "pattern": ["window", "full"],
                    "window": 5,
                    "rope": {"theta": 100.0, "yarn": YARN, "full_layers_rotary": 0.75},
                }
                | (attention or {}),
                "moe": {"experts": 5, "top_k": 2, "shared_experts": 1, "d_ff": 20} | (moe or {}),
            }
            | model,
            "training": {
                "context": 32,
                "steps": 10,
                "precision": "fp32",
                "optimizer": {"lr": 1e-3},
            }
            | (training or {}),
            "inference": {"context": 40, "prefill_chunk": 7},
            "target": {"gpu": "cpu"},
        }
    )


def tiny_plan(spec: Spec | None = None, **execution: Any) -> Plan:
    """The plan of a tiny spec on the CPU; `execution` overrides what was decided."""
    plan = resolve(spec or tiny_spec(), CPU)
    decided = Execution.model_validate(plan.execution.model_dump() | execution)
    return plan.model_copy(update={"execution": decided})


def randomized(plan: Plan, *, dtype: torch.dtype = torch.float64) -> Transformer:
    """The built model with norms and sinks away from 1 and 0, so that they show in gradients."""
    model = build(plan)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return model.to(dtype)


def random_tokens(batch: int, length: int, vocab: int = 61, seed: int = 5) -> torch.Tensor:
    """Token ids [batch, length]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (batch, length), generator=generator)
