"""What the explicit softmax of model/attention_math.py holds: it works in chunks of queries.

A chunk's probabilities are saved, so memory grows with the visible part of the scores. Where
the batch and the key heads do not merge into one dimension without a copy, each chunk also
saves a copy of the keys and values that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.plan.sizes import FP32, Sizes
from gptoss_builder.plan.tape import Tape, rounded
from gptoss_builder.spec.schema import LayerKind

QUERY_CHUNK = 256
"""`model.attention_math.QUERY_CHUNK`; a test holds them equal."""
SAVED = "attention probabilities"
TEMPORARIES = "scores of a chunk"


@dataclass(frozen=True, slots=True)
class _Chunk:
    queries: int
    """Bytes of the queries' copy, of the same size as the chunk's output."""
    keys: int
    """Bytes of the visible keys; the values are as many."""
    scores: int
    probabilities: int
    """As the scores, with the sink's column."""
    saved: int


def _merges(size: Sizes) -> bool:
    return size.batch == 1 or size.kv_heads == 1


def _keeps_queries(size: Sizes) -> bool:
    """Whether the scaled queries themselves are saved, in place of a copy a chunk."""
    return size.heads == size.kv_heads and _merges(size)


def _chunks(size: Sizes, kind: LayerKind) -> list[_Chunk]:
    window = size.window[kind]
    chunks = []
    for start in range(0, size.length, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, size.length)
        first = 0 if window is None else max(0, start - window + 1)
        count, seen = stop - start, stop - first
        rows = size.batch * size.heads * count
        queries = rounded(rows * size.head_dim * FP32)
        keys = rounded(size.batch * size.kv_heads * seen * size.head_dim * FP32)
        probabilities = rounded(rows * (seen + size.sinks) * FP32)
        saved = probabilities + rounded(count * seen)
        saved += 0 if _keeps_queries(size) else queries
        saved += 0 if _merges(size) else 2 * keys
        chunks.append(_Chunk(queries, keys, rounded(rows * seen * FP32), probabilities, saved))
    return chunks


def math_forward(tape: Tape, size: Sizes, kind: LayerKind) -> None:
    """From q, k and v, held, to the output; what the backward needs stays."""
    out = size.tokens * size.heads * size.head_dim
    keys = size.tokens * size.kv_heads * size.head_dim
    if size.low:
        tape.touch("wide queries", 2 * out * FP32)
        tape.hold("wide keys and values", 2 * keys * FP32)
    tape.hold("scaled queries", out * FP32)
    previous = 0
    for chunk in _chunks(size, kind):
        # the values are copied after the softmax
        copies = chunk.saved - chunk.probabilities - (0 if _merges(size) else chunk.keys)
        tape.touch(TEMPORARIES, copies + previous + chunk.scores)
        column = chunk.probabilities if size.sinks else 0
        tape.touch(TEMPORARIES, copies + chunk.scores + column + chunk.probabilities)
        tape.hold(SAVED, chunk.saved)
        tape.hold("outputs of chunks", chunk.queries)
        tape.touch(TEMPORARIES, chunk.scores)
        previous = chunk.scores
    tape.touch(TEMPORARIES, previous + out * (FP32 + (size.element if size.low else 0)))
    tape.drop("outputs of chunks")
    if not _keeps_queries(size):
        tape.drop("scaled queries")
    if size.low:
        tape.touch(TEMPORARIES, out * (FP32 + size.element))
        tape.drop("rotated queries and keys", "values")
        if not _merges(size):
            tape.drop("wide keys and values")
    elif not _merges(size):
        tape.drop("rotated queries and keys", "values")
    tape.touch(TEMPORARIES, 2 * out * size.element)
    tape.hold("attention output", out * size.element)


def math_backward(tape: Tape, size: Sizes, kind: LayerKind) -> None:
    """From the gradient of the output, held, to those of q, k and v."""
    out = size.tokens * size.heads * size.head_dim
    keys = size.tokens * size.kv_heads * size.head_dim
    incoming = "gradient of the attention output"
    if size.low:
        tape.hold("wide gradient of the output", out * FP32)
        tape.drop(incoming)
        incoming = "wide gradient of the output"
    tape.drop("attention output")
    chunks = _chunks(size, kind)
    for chunk in reversed(chunks):
        copy = 0 if _merges(size) else chunk.keys
        if chunk is chunks[0]:
            tape.touch(TEMPORARIES, chunk.queries)
            tape.drop(incoming)
        tape.touch(TEMPORARIES, chunk.queries + chunk.keys + chunk.scores)
        if chunk is chunks[-1]:
            tape.hold("gradient of v", keys * FP32)
        tape.touch(TEMPORARIES, 2 * chunk.probabilities - copy)
        if chunk is chunks[-1]:
            tape.hold("gradient of k", keys * FP32)
            tape.hold("gradient of q", out * FP32)
        tape.shrink(SAVED, chunk.saved)
    tape.touch(TEMPORARIES, out * FP32)
    if size.low:
        tape.drop("gradient of q", "gradient of k", "gradient of v")
        tape.hold("gradient of q", out * size.element)
        tape.hold("gradient of k", keys * size.element)
        tape.hold("gradient of v", keys * size.element)
    tape.drop(SAVED)
    for name in ("scaled queries", "wide keys and values", "rotated queries and keys", "values"):
        if name in tape.items:
            tape.drop(name)
