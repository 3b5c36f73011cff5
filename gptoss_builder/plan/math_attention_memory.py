"""What the explicit softmax of model/attention_math.py holds: it works in chunks of queries.

A chunk's probabilities are saved, so memory grows with the visible part of the scores. Where
the batch and the key heads do not merge into one dimension without a copy, each chunk also
saves a copy of the keys and values that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.plan.sizes import FP32, INT64, Sizes
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
    mask: int
    positions: int
    """What the mask is made of."""
    saved: int


def merges(size: Sizes) -> bool:
    """Whether batch and key heads become one dimension without a copy."""
    return size.batch == 1 or size.kv_heads == 1


def positions_bytes(queries: int, keys: int, *, windowed: bool) -> int:
    """Positions, their distances in int64, and what compares them."""
    pairs = queries * keys
    return pairs * (INT64 + (3 if windowed else 1)) + (queries + keys) * INT64


def _copies_queries(size: Sizes, count: int) -> bool:
    """Whether a chunk of `count` queries saves a copy of them; a view keeps all of them alive."""
    return not merges(size) or (size.heads != size.kv_heads and count > 1)


def _keeps_queries(size: Sizes) -> bool:
    """Whether the scaled queries themselves are saved: by every chunk or by a last one of one."""
    return not _copies_queries(size, (size.length - 1) % QUERY_CHUNK + 1)


def _seen(size: Sizes, kind: LayerKind, start: int) -> int:
    """Keys that the chunk from `start` sees: to its own end, a window back from its first query."""
    stop = min(start + QUERY_CHUNK, size.length)
    window = size.window[kind]
    return stop if window is None else min(stop, stop - start + window - 1)


def _chunk(size: Sizes, kind: LayerKind, start: int) -> _Chunk:
    count, seen = min(QUERY_CHUNK, size.length - start), _seen(size, kind, start)
    rows = size.batch * size.heads * count
    queries = rounded(rows * size.head_dim * FP32)
    keys = rounded(size.batch * size.kv_heads * seen * size.head_dim * FP32)
    probabilities = rounded(rows * (seen + size.sinks) * FP32)
    mask, scores = rounded(count * seen), rounded(rows * seen * FP32)
    saved = probabilities + mask
    saved += queries if _copies_queries(size, count) else 0
    saved += 0 if merges(size) else 2 * keys
    positions = positions_bytes(count, seen, windowed=kind == "window")
    return _Chunk(queries, keys, scores, probabilities, mask, positions, saved)


def _last_chunks(size: Sizes, kind: LayerKind) -> tuple[int, list[_Chunk]]:
    """The last two chunks, and how many come before them.

    The peak is in one of the two. Whole chunks see ever more keys until a window is full, and
    what is saved grows, so the last whole chunk is the worst of all whole ones.
    """
    starts = range(0, size.length, QUERY_CHUNK)
    return max(len(starts) - 2, 0), [_chunk(size, kind, start) for start in starts[-2:]]


def _saved_before(size: Sizes, kind: LayerKind, count: int) -> int:
    """Bytes that the first `count` chunks save; all of them are whole.

    While a chunk still sees the first key its bytes grow by the same amount each time: whole
    chunks of such widths are multiples of the allocator's block. Later ones are all alike.
    """
    window = size.window[kind]
    growing = count if window is None else min(count, -(-(window - 1) // QUERY_CHUNK))
    alike = count - growing
    total = alike * _chunk(size, kind, growing * QUERY_CHUNK).saved
    if growing:
        last = _chunk(size, kind, (growing - 1) * QUERY_CHUNK)
        total += growing * (_chunk(size, kind, 0).saved + last.saved) // 2
    return total


def math_forward(tape: Tape, size: Sizes, kind: LayerKind) -> None:
    """From q, k and v, held, to the output; what the backward needs stays."""
    out = size.tokens * size.heads * size.head_dim
    keys = size.tokens * size.kv_heads * size.head_dim
    if size.low:
        tape.touch("wide queries", 2 * out * FP32)
        tape.hold("wide keys and values", 2 * keys * FP32)
    tape.hold("scaled queries", out * FP32)
    before, chunks = _last_chunks(size, kind)
    previous = 0
    if before:
        tape.hold(SAVED, _saved_before(size, kind, before))
        tape.hold("outputs of chunks", before * chunks[0].queries)
        previous = _chunk(size, kind, (before - 1) * QUERY_CHUNK).scores
    for chunk in chunks:
        # the values are copied after the softmax
        copies = chunk.saved - chunk.probabilities - (0 if merges(size) else chunk.keys)
        tape.touch(TEMPORARIES, copies + previous + chunk.scores)
        column = chunk.probabilities if size.sinks else 0
        softmax = max(chunk.scores, column + chunk.probabilities)
        made = max(chunk.positions, chunk.mask + softmax)
        tape.touch(TEMPORARIES, copies + chunk.scores + made)
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
        if not merges(size):
            tape.drop("wide keys and values")
    elif not merges(size):
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
    before, chunks = _last_chunks(size, kind)
    for chunk in reversed(chunks):
        copy = 0 if merges(size) else chunk.keys
        if chunk is chunks[0] and not before:
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
        if chunk is chunks[-1] and size.heads != size.kv_heads and _keeps_queries(size):
            tape.drop("scaled queries")
    if before:
        tape.shrink(SAVED, _saved_before(size, kind, before))
        tape.drop(incoming)
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
