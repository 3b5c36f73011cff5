"""The closed form of the explicit softmax against a plain loop over its chunks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gptoss_builder.plan import math_attention_memory as memory
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.sizes import sizes
from gptoss_builder.plan.tape import Tape
from gptoss_builder.targets import lookup
from tests.plan.specs import lite

CHUNK = memory.QUERY_CHUNK
EDGES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1]


def plain_chunks(size, kind):
    """Every chunk, one by one: a query sees itself and the window - 1 keys before it."""
    window = size.window[kind] or size.length
    chunks = []
    for start in range(0, size.length, CHUNK):
        stop = min(start + CHUNK, size.length)
        count, seen = stop - start, stop - max(0, start - window + 1)

        def block(elements, width=4):
            return (elements * width + 511) // 512 * 512

        queries = block(size.batch * size.heads * count * size.head_dim)
        keys = block(size.batch * size.kv_heads * seen * size.head_dim)
        scores = block(size.batch * size.heads * count * seen)
        probabilities = block(size.batch * size.heads * count * (seen + size.sinks))
        merged = size.batch == 1 or size.kv_heads == 1
        mask = block(count * seen, 1)
        saved = probabilities + mask
        # a chunk of one query is a view, as is one where each query head has its own keys
        if not (merged and (size.heads == size.kv_heads or count == 1)):
            saved += queries
        if not merged:
            saved += 2 * keys
        positions = 8 * (count + seen + count * seen)
        positions += count * seen * (1 if kind == "full" else 3)  # its comparisons
        chunks.append(memory._Chunk(queries, keys, scores, probabilities, mask, positions, saved))
    return chunks


def random_size(draw, base):
    kv_heads = draw.choice([1, 2, 3])
    batch, length = draw.choice([1, 2, 3]), draw.choice([*EDGES, draw.randint(1, 4000)])
    return replace(
        base,
        batch=batch,
        length=length,
        tokens=batch * length,
        kv_heads=kv_heads,
        heads=kv_heads * draw.choice([1, 2]),
        head_dim=draw.choice([2, 7, 64]),
        window={"window": draw.choice([*EDGES, draw.randint(1, 5000)]), "full": None},
        sinks=draw.random() < 0.5,
    )


def walked(size, kind):
    """Peak, its terms and what is left, of the forward and of the backward."""
    forward = Tape({"rotated queries and keys": 12 * size.tokens, "values": 7 * size.tokens})
    memory.math_forward(forward, size, kind)
    gradient = 4 * size.tokens * size.heads * size.head_dim
    backward = Tape({**forward.items, "gradient of the attention output": gradient})
    memory.math_backward(backward, size, kind)
    return [
        (tape.peak, {name: part for name, part in tape.peak_items().items() if part}, tape.items)
        for tape in (forward, backward)
    ]


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("kind", ["window", "full"])
def test_the_sum_over_chunks_is_that_of_a_loop(target, kind, monkeypatch):
    precision = "fp32" if target == "cpu" else "bf16"
    plan = resolve(
        lite(training__precision=precision, model__attention__backend="math"), lookup(target)
    )
    base, draw = sizes(plan.spec, plan.execution, 1, 1), random.Random(0)
    many = [random_size(draw, base) for _ in range(500)]
    closed = [walked(size, kind) for size in many]
    monkeypatch.setattr(memory, "_last_chunks", lambda size, kind: (0, plain_chunks(size, kind)))
    for size, found in zip(many, closed, strict=True):
        assert found == walked(size, kind), size
