"""Specs for the plan's tests: gpt_oss_lite's shape, and a random one of any legal shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gptoss_builder.spec.schema import Spec

LITE: dict[str, Any] = {
    "spec": 1,
    "name": "lite",
    "model": {
        "vocab": 128000,
        "d_model": 768,
        "layers": 12,
        "attention": {
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 96,
            "pattern": ["window", "full"],
            "window": 128,
        },
        "moe": {"experts": 8, "top_k": 2, "shared_experts": 1, "d_ff": 1536},
    },
    "training": {
        "context": 4096,
        "micro_batch": 8,
        "accumulate": 4,
        "steps": 61000,
        "checkpoint_every": 3,
        "optimizer": {"lr": 4e-4},
    },
    "inference": {"context": 131072},
    "target": {"gpu": "a100-80gb"},
}


def lite(**changes: Any) -> Spec:
    """gpt_oss_lite with changes: `training__context=16384` sets that field."""
    return Spec.model_validate(changed(LITE, changes))


def changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of `values` with dotted (`__`) fields replaced; None drops one."""
    copy: dict[str, Any] = {
        key: changed(value, {}) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = copy
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return copy


@st.composite
def small_specs(draw: st.DrawFn, **changes: Any) -> Spec:
    """Small legal specs of awkward sizes."""
    kv_heads = draw(st.integers(1, 3))
    experts = draw(st.integers(1, 9))
    layers = draw(st.integers(1, 5))
    fields = {
        "model__vocab": draw(st.integers(2, 300)),
        "model__d_model": 8 * draw(st.integers(1, 12)),
        "model__layers": layers,
        "model__tie_embeddings": draw(st.booleans()),
        "model__attention": {
            "heads": kv_heads * draw(st.integers(1, 3)),
            "kv_heads": kv_heads,
            "head_dim": 8 * draw(st.integers(1, 5)),
            "pattern": draw(st.lists(st.sampled_from(["window", "full"]), min_size=1, max_size=3)),
            "window": draw(st.integers(1, 80)),
            "sinks": draw(st.booleans()),
        },
        "model__moe": {
            "experts": experts,
            "top_k": draw(st.integers(1, experts)),
            "shared_experts": draw(st.integers(0, 2)),
            "d_ff": 8 * draw(st.integers(1, 12)),
        },
        "training__context": draw(st.integers(1, 130)),
        "training__micro_batch": draw(st.integers(1, 3)),
        "training__checkpoint_every": draw(st.integers(0, layers + 1)),
        "inference__context": draw(st.integers(1, 130)),
    }
    return lite(**(fields | changes))
