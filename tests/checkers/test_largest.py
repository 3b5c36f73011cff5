"""A spec with every number at its largest: judged as quickly as any other."""

from __future__ import annotations

import time

import pytest
import yaml

from gptoss_builder.pipeline import check
from gptoss_builder.spec.schema import InferenceSpec, ModelSpec, MoESpec, TrainingSpec

MOST_SECONDS = 1.0


def largest(model: type, field: str) -> int:
    return next(m.le for m in model.model_fields[field].metadata if hasattr(m, "le"))


def spec(gpu: str, precision: str, every: int) -> dict[str, object]:
    training = {
        field: largest(TrainingSpec, field)
        for field in ("context", "micro_batch", "accumulate", "steps", "loss_chunk")
    }
    return {
        "spec": 1,
        "name": "largest",
        "model": {
            "vocab": largest(ModelSpec, "vocab"),
            "d_model": largest(ModelSpec, "d_model"),
            "layers": largest(ModelSpec, "layers"),
            "attention": {
                "heads": 64,
                "kv_heads": 8,
                "head_dim": 128,
                "pattern": ["window", "full"],
                "window": 1_000_000,
                "backend": "math",
            },
            "moe": {
                "experts": largest(MoESpec, "experts"),
                "top_k": 8,
                "d_ff": largest(MoESpec, "d_ff"),
            },
        },
        "training": training
        | {"checkpoint_every": every, "precision": precision, "optimizer": {"lr": 1e-4}},
        "inference": {
            "context": largest(InferenceSpec, "context"),
            "batch": largest(InferenceSpec, "batch"),
        },
        "target": {"gpu": gpu},
    }


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize(("gpu", "precision"), [("gtx1650", "fp32"), ("h200", "bf16")])
def test_the_largest_spec_is_judged_in_a_second(gpu: str, precision: str, every: int) -> None:
    text = yaml.safe_dump(spec(gpu, precision, every))
    seconds = []
    for _ in range(3):
        start = time.process_time()
        checked = check("largest.yaml", text=text)
        seconds.append(time.process_time() - start)
    assert {"VR001", "VR002"} <= {finding.code for finding in checked.errors}
    assert min(seconds) < MOST_SECONDS
