"""The closed form of the explicit softmax against `attend_math` itself under fake tensors."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gptoss_builder.model.attention_math import attend_math
from gptoss_builder.plan.math_attention_memory import QUERY_CHUNK, math_forward
from gptoss_builder.plan.math_serving_memory import serving_scores
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.sizes import sizes
from gptoss_builder.plan.tape import Tape
from gptoss_builder.targets import lookup
from tests.plan.oracle import LiveStorages
from tests.plan.specs import lite

LENGTHS = [1, 17, QUERY_CHUNK - 1, QUERY_CHUNK, QUERY_CHUNK + 1, 300, 513, 600, 1025]
WINDOWS = [1, 16, QUERY_CHUNK, 300, 5000]
PAST = [0, 100, 300, 3000, 20000]
BLOCKS = 16 * 512
"""Bytes of rounding."""


def random_size(seed, low):
    draw = random.Random(seed)
    target, precision = ("h200", "bf16") if low else ("cpu", "fp32")
    plan = resolve(
        lite(training__precision=precision, model__attention__backend="math"), lookup(target)
    )
    base = sizes(plan.spec, plan.execution, 1, 1)
    batch, length = draw.choice([1, 1, 2, 4]), draw.choice(LENGTHS)
    kv_heads = draw.choice([1, 2, 4])
    size = replace(
        base,
        batch=batch,
        length=length,
        tokens=batch * length,
        kv_heads=kv_heads,
        heads=kv_heads * draw.choice([1, 1, 2, 8]),
        head_dim=draw.choice([8, 64, 128]),
        window=replace(base.window, window=draw.choice(WINDOWS)),
        sinks=draw.random() < 0.5,
    )
    return size, draw.choice(["window", "full"]), draw.choice(PAST)


def inputs(size, keys, *, gradients=False):
    dtype = torch.bfloat16 if size.low else torch.float32
    shapes = [(size.length, size.heads), (keys, size.kv_heads), (keys, size.kv_heads)]
    made = [
        torch.zeros(size.batch, *shape, size.head_dim, dtype=dtype, requires_grad=gradients)
        for shape in shapes
    ]
    sink = torch.zeros(size.heads, requires_grad=gradients) if size.sinks else None
    return made, sink


@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_serving_holds_what_the_softmax_allocates(low):
    for seed in range(60):
        size, kind, past = random_size(seed, low)
        window = size.window[kind]
        seen = past + size.length
        if window is not None:  # as the cache hands them over
            kept = min(window - 1, past)
            seen = kept + size.length
        live = LiveStorages()
        with FakeTensorMode(), live, torch.no_grad():
            made, sink = inputs(size, seen)
            live.moment, before = "attention", live.live
            attend_math(*made, sink, None if window is not None and seen <= window else window)
        tape = Tape()
        serving_scores(tape, size, kind, seen)
        found = live.peaks["attention"] - before
        assert tape.peak == pytest.approx(found, rel=2e-3, abs=BLOCKS), (size, kind, seen)


@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_training_holds_and_saves_what_the_softmax_does(low):
    for seed in range(60):
        size, kind, _ = random_size(seed, low)
        if size.length == 1:
            continue  # everything merges without a copy; what is left is rounding
        live = LiveStorages()
        with FakeTensorMode(), live:
            made, sink = inputs(size, size.length, gradients=True)
            before = live.live

            def attend(q, k, v, sink=sink, window=size.window[kind], live=live):
                # q and k are parts of one tensor, which dies here if nothing saves it
                q, k = torch.cat([q, k], dim=2).split_with_sizes([q.shape[2], k.shape[2]], dim=2)
                live.moment = "attention"
                return attend_math(q, k, v.clone(), sink, window).flatten(2).clone()

            out = attend(*made)
            saved, found = live.live - before, live.peaks["attention"] - before
            del out
        keys = size.tokens * size.kv_heads * size.head_dim * size.element
        queries = size.tokens * size.heads * size.head_dim * size.element
        tape = Tape({"rotated queries and keys": queries + keys, "values": keys})
        math_forward(tape, size, kind)
        mask = min(QUERY_CHUNK, size.length) * size.length
        assert tape.live == pytest.approx(saved, rel=2e-3, abs=BLOCKS), (size, kind)
        # of the masks of one chunk or the next, which are bytes beside fp32 scores
        assert tape.peak == pytest.approx(found, rel=2e-3, abs=BLOCKS + mask), (size, kind)
