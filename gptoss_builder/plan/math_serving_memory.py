"""What the explicit softmax of model/attention_math.py holds while serving: nothing is saved.

A chunk's scores and weights die when the next chunk's are made, so each chunk is walked beside
the one before it.
"""

from __future__ import annotations

from typing import NamedTuple

from gptoss_builder.plan.math_attention_memory import QUERY_CHUNK, merges, positions_bytes
from gptoss_builder.plan.sizes import FP32, Sizes
from gptoss_builder.plan.tape import Tape, rounded
from gptoss_builder.spec.schema import LayerKind


class _Chunk(NamedTuple):
    """Bytes of a chunk of queries and the keys that they see."""

    output: int
    queries: int
    """The chunk's own copy of its queries; 0 where it is a view."""
    copied_queries: int
    """The same, or the copy that a product makes."""
    copied_keys: int
    """The copy that a product makes; that of the values is as large."""
    scores: int
    weights: int
    """As the scores, with the sink's column."""
    mask: int
    positions: int
    """What the mask is made of: positions, their distances, comparisons."""


_NOTHING = _Chunk(0, 0, 0, 0, 0, 0, 0, 0)


def serving_scores(tape: Tape, size: Sizes, kind: LayerKind, seen: int) -> None:
    """From the queries and `seen` keys and values of each sequence, held, to the output."""
    queries = size.tokens * size.heads * size.head_dim
    if size.low:
        tape.touch("wide queries", 2 * queries * FP32)
        keys = size.batch * seen * size.kv_heads * size.head_dim
        tape.hold("wide keys and values", 2 * keys * FP32)
    tape.hold("scaled queries", queries * FP32)
    chunk = _NOTHING
    # finished outputs and seen keys grow, so the last whole chunk is the worst of all whole ones
    for start in range(0, size.length, QUERY_CHUNK)[-2:]:
        before = _chunk(size, kind, seen, start - QUERY_CHUNK) if start else _NOTHING
        chunk = _chunk(size, kind, seen, start)
        done = start // QUERY_CHUNK * before.output
        tape.touch("scores of a chunk", done + _worst(size, chunk, before))
    outputs = 2 * queries * FP32 + (queries * size.element if size.low else 0)
    left = chunk.queries + chunk.scores + chunk.weights + chunk.mask
    tape.touch("outputs of chunks", outputs + left)
    tape.drop("scaled queries")
    if size.low:
        tape.drop("wide keys and values")
    tape.hold("attention output", queries * size.element)


def _chunk(size: Sizes, kind: LayerKind, seen: int, start: int) -> _Chunk:
    count = min(QUERY_CHUNK, size.length - start)
    visible, window = seen - size.length + start + count, size.window[kind]
    if window is not None:
        visible = min(visible, window - 1 + count)
    rows, pairs = size.batch * size.heads * count, count * visible
    output = rounded(rows * size.head_dim * FP32)
    queries = 0 if size.heads == size.kv_heads or count == 1 else output
    windowed = window is not None and seen > window
    return _Chunk(
        output=output,
        queries=queries,
        copied_queries=queries if merges(size) else output,
        copied_keys=0
        if merges(size)
        else rounded(size.batch * size.kv_heads * visible * size.head_dim * FP32),
        scores=rounded(rows * visible * FP32),
        weights=rounded(rows * (visible + size.sinks) * FP32),
        mask=rounded(pairs),
        positions=positions_bytes(count, visible, windowed=windowed),
    )


def _worst(size: Sizes, chunk: _Chunk, before: _Chunk) -> int:
    """The largest sum on the way from a chunk's queries to its output."""
    scores, own = chunk.scores, chunk.queries
    sliced = before.queries + before.scores + before.mask + own
    products = before.scores + before.mask + chunk.copied_queries + chunk.copied_keys + scores
    mask = before.mask + own + scores + chunk.positions
    masked = own + 2 * scores + 2 * chunk.mask
    column = chunk.weights if size.sinks else 0
    softmax = own + scores + column + chunk.weights + chunk.mask
    weighted = own + scores + chunk.weights + chunk.mask + chunk.copied_keys + chunk.output
    return max(before.weights + max(sliced, products, mask, masked, softmax), weighted)
