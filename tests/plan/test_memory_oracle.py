"""The closed form against the real model, its loss and its optimizer under fake tensors.

A change to the model that saves or allocates another tensor fails here. What fake tensors
cannot show (scratch inside attention kernels, workspaces) is left out on both sides.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from gptoss_builder.kernels import elementwise
from gptoss_builder.model.attention_math import QUERY_CHUNK
from gptoss_builder.plan import math_attention_memory
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.training_memory import training_moments
from gptoss_builder.spec.load import load_spec
from gptoss_builder.targets import lookup
from tests.plan.oracle import measure_serving, measure_training
from tests.plan.specs import lite, small_specs

SPECS = Path(__file__).parents[2] / "specs"
PEAK = 1e-3
"""Ten times tighter than what is promised: the closed form misses only scalars."""
MOMENT = 1e-2
"""Of other moments near the peak."""
SCALARS = 192 * 1024
"""Bytes of scalars and row vectors that the closed form does not follow."""

SMALL = {
    "model__vocab": 1000,
    "model__layers": 2,
    "training__context": 700,
    "training__micro_batch": 2,
    "training__accumulate": 2,
    "training__loss_chunk": 512,
    "training__checkpoint_every": 0,
}
GROUPED = {"model__moe__dispatch": "grouped_mm"}
TRITON = {"model__moe__dispatch": "triton_grouped"}

ATTENTION_HEAVY = {
    "model__d_model": 64,
    "model__attention__head_dim": 128,
    "model__moe": {"experts": 2, "top_k": 1, "d_ff": 8},
}
"""Little but attention, so that its moments make the peak."""


WIDE_ATTENTION = {
    "model__d_model": 64,
    "model__attention": {
        "heads": 16,
        "kv_heads": 2,
        "head_dim": 96,
        "pattern": ["full"],
        "sinks": False,
        "rope": {"full_layers_rotary": 0.75},
    },
    "model__moe": {"experts": 4, "top_k": 1, "d_ff": 32},
}
FEW_HEADS = {"heads": 2, "kv_heads": 1, "head_dim": 64, "window": 128}


def compare(spec, target):
    """Every moment that could be the peak, and the peak."""
    plan = resolve(spec, lookup(target))
    assert not plan.execution.compile
    measured = measure_training(plan).peaks
    closed = training_moments(spec, plan.execution, plan.parameters, scratch=False)
    for moment in closed:
        actual = measured[moment.name.split()[0]]
        if actual < 0.75 * max(measured.values()):
            continue
        if moment.name == "forward" and plan.execution.checkpointed_layers:
            # an upper bound, below the replay: the first forward frees what the replay keeps
            assert moment.allocated_bytes >= (1 - MOMENT) * actual - SCALARS
            continue
        assert moment.allocated_bytes == pytest.approx(actual, rel=MOMENT, abs=SCALARS), moment.name
    peak = max(moment.allocated_bytes for moment in closed)
    assert peak == pytest.approx(max(measured.values()), rel=PEAK, abs=SCALARS)


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("h200", GROUPED),
        ("h200", GROUPED | {"model__moe__backward": "save"}),
        ("h200", TRITON),
        ("h200", TRITON | {"model__moe__backward": "save", "training__checkpoint_every": 2}),
        ("h200", TRITON | {"model__moe__shared_experts": 0, "training__context": 2000}),
        ("a100-80gb", {"training__checkpoint_every": 1, "training__accumulate": 1}),
        ("a100-80gb", {"model__tie_embeddings": False, "model__attention__sinks": False}),
        ("a100-80gb", {"model__vocab": 30000, "model__d_model": 128, "training__accumulate": 1}),
        ("a100-80gb", {"model__vocab": 30000, "training__loss_chunk": 50, "model__d_model": 128}),
        (
            "h200",
            {"model__attention__rope": {"full_layers_rotary": 0.75}, "training__accumulate": 1},
        ),
        ("cpu", {"training__precision": "fp32"}),
        ("cpu", {"training__precision": "fp32", "training__micro_batch": 1}),
        ("h200", {"model__attention__backend": "math", "training__checkpoint_every": 3}),
        ("h200", {"model__attention__backend": "math", "model__attention__kv_heads": 8}),
        ("t4", {"training__precision": "fp32", "model__attention__kv_heads": 1}),
        ("h200", ATTENTION_HEAVY),
        ("cpu", ATTENTION_HEAVY | {"training__precision": "fp32", "training__context": 500}),
        ("h200", ATTENTION_HEAVY | {"model__attention__backend": "math"}),
        ("cpu", ATTENTION_HEAVY | {"training__precision": "fp32", "training__checkpoint_every": 1}),
        # a last chunk of one query is a view of all of them
        (
            "t4",
            ATTENTION_HEAVY
            | {
                "training__precision": "fp32",
                "training__context": 513,
                "training__micro_batch": 1,
                "model__moe__dispatch": "stacked",
            },
        ),
        # wide attention without sinks: the rotation leads the forward
        ("h200", WIDE_ATTENTION),
        # untied and summed up: the head's gradient is there twice when the backward begins
        (
            "h200",
            {
                "model__tie_embeddings": False,
                "model__vocab": 60000,
                "model__d_model": 64,
                "model__layers": 5,
                "model__attention": FEW_HEADS,
                "model__moe": {"experts": 2, "top_k": 1, "d_ff": 64},
                "training__loss_chunk": 32,
            },
        ),
        # one expert a token of many: their gradients lead, with the sum over choices beside them
        ("h200", {"model__moe": {"experts": 32, "top_k": 1, "d_ff": 256}}),
        (
            "cpu",
            {
                "training__precision": "fp32",
                "model__layers": 1,
                "model__moe": {"experts": 32, "top_k": 1, "d_ff": 128},
            },
        ),
        # wide experts with `save`: the activation leads the forward
        (
            "h200",
            {
                "model__d_model": 64,
                "model__attention": FEW_HEADS,
                "model__moe": {"experts": 8, "top_k": 1, "d_ff": 3072, "backward": "save"},
            },
        ),
    ],
)
def test_the_closed_form_is_what_the_model_allocates(target, changes):
    compare(lite(**(SMALL | changes)), target)


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("h200", {"model__moe__dispatch": "stacked"}),
        ("h200", {"model__moe__d_ff": 24, "model__moe__top_k": 8}),  # the sum over choices leads
        ("cpu", {"training__precision": "fp32", "model__attention__pattern": ["window"]}),
    ],
)
def test_the_closed_form_holds_where_elementwise_work_takes_many_chunks(target, changes):
    spec = lite(**(SMALL | {"training__context": 6000} | changes))
    assert 12_000 * spec.model.d_model > elementwise.CHUNK
    compare(spec, target)


@pytest.mark.parametrize("name", ["tiny", pytest.param("gpt_oss_smoke", marks=pytest.mark.slow)])
def test_the_closed_form_holds_for_shipped_specs(name):
    spec = load_spec(SPECS / f"{name}.yaml")
    compare(spec, spec.target.gpu)


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1, 3])
def test_the_closed_form_holds_for_gpt_oss_lite(every):
    spec = load_spec(SPECS / "gpt_oss_lite.yaml")
    training = spec.training.model_copy(update={"checkpoint_every": every, "compile": False})
    compare(spec.model_copy(update={"training": training}), "h200")


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # an example takes a second, and shrinking hundreds of them
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    spec=small_specs(training__accumulate=2, training__precision="fp32"),
    bf16=st.booleans(),
)
def test_the_closed_form_holds_for_random_specs(spec, bf16):
    if bf16:
        training = spec.training.model_copy(update={"precision": "bf16"})
        spec = spec.model_copy(update={"training": training})
    compare(spec, "a100-80gb" if bf16 else "cpu")


def test_accumulation_holds_every_gradient_and_more_of_it_holds_no_more():
    # Micro-batches after the first find all gradients there (tt-metal#50909).
    peaks = {
        count: max(
            moment.allocated_bytes
            for moment in resolve(
                lite(training__accumulate=count), lookup("h200")
            ).memory.training.moments
        )
        for count in (1, 2, 4)
    }
    tokens = 2 * 8 * 4096 * 8
    assert peaks[4] - peaks[2] == 2 * tokens
    assert peaks[2] > peaks[1]


def test_the_chunk_of_queries_is_the_models():
    assert math_attention_memory.QUERY_CHUNK == QUERY_CHUNK


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("h200", GROUPED | {"inference__context": 5000}),
        ("h200", TRITON | {"model__moe__backward": "save", "inference__context": 3000}),
        ("a100-80gb", {"inference__context": 4096, "inference__batch": 4}),
        ("h200", {"model__moe__d_ff": 8, "model__moe__top_k": 8, "inference__context": 3000}),
        ("cpu", {"training__precision": "fp32", "inference__context": 3000}),
        ("cpu", {"training__precision": "fp32", "inference__context": 900, "inference__batch": 3}),
        ("h200", {"model__attention__backend": "math", "inference__context": 4000}),
        (
            "h200",
            WIDE_ATTENTION | {"inference": {"context": 1500, "batch": 4, "prefill_chunk": 256}},
        ),
        # thin experts and few heads: the norms lead
        (
            "h200",
            {
                "model__attention": {"heads": 4, "kv_heads": 1, "head_dim": 8, "window": 256},
                "model__moe": {"experts": 1, "top_k": 1, "d_ff": 64, "dispatch": "triton_grouped"},
                "inference": {"context": 700, "batch": 4, "prefill_chunk": 300},
            },
        ),
        (
            "h200",
            ATTENTION_HEAVY
            | {
                "model__attention": {"heads": 32, "kv_heads": 4, "head_dim": 64, "backend": "math"},
                "inference": {"context": 3000, "batch": 4, "prefill_chunk": 300},
            },
        ),
    ],
)
def test_serving_is_what_the_model_allocates(target, changes):
    plan = resolve(lite(**(SMALL | changes)), lookup(target))
    inference = plan.spec.inference
    chunk = min(inference.prefill_chunk, inference.context)
    passes = ((inference.context - chunk, chunk), (inference.context - 1, 1))
    for moment, (position, tokens) in zip(plan.memory.inference.moments, passes, strict=True):
        measured = max(measure_serving(plan, position, tokens).peaks.values())
        assert moment.allocated_bytes == pytest.approx(measured, rel=MOMENT, abs=SCALARS), (
            moment.name
        )
