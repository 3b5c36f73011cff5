"""Bytes alive while serving: weights, the key-value cache, and one forward pass without gradients.

Weights are the fp32 parameters; where the products run in bf16 each matrix is cast when it is
used and the copy dies with its product, as in model/transformer.py.
"""

from __future__ import annotations

from gptoss_builder.plan.elementwise_memory import activation_bytes, combine_bytes
from gptoss_builder.plan.math_serving_memory import serving_scores
from gptoss_builder.plan.schema import Execution, KVCache, ParameterCounts
from gptoss_builder.plan.sizes import FP32, INT64, Sizes, sizes
from gptoss_builder.plan.tape import Sum, Tape
from gptoss_builder.spec.schema import InferenceSpec, LayerKind, Spec

TEMPORARIES = "elementwise temporaries"


def serving_sums(
    spec: Spec,
    execution: Execution,
    parameters: ParameterCounts,
    inference: InferenceSpec,
    cache: KVCache,
) -> tuple[Sum, ...]:
    """The last chunk of a prompt that fills the context, and one new token for each sequence."""
    prefill = min(inference.prefill_chunk, inference.context)
    held = {
        "parameters": parameters.total * FP32,
        "key-value cache": cache.total_bytes,
        "tokens": inference.batch * inference.context * INT64,
    }
    return tuple(
        _forward(spec, execution, held, name, inference, tokens)
        for name, tokens in (("prefill", prefill), ("decode", 1))
    )


def _forward(
    spec: Spec,
    execution: Execution,
    held: dict[str, int],
    name: str,
    inference: InferenceSpec,
    tokens: int,
) -> Sum:
    size = sizes(spec, execution, inference.batch, tokens)
    kinds = tuple(dict.fromkeys(spec.layer_kinds()))
    tables = sum(2 * tokens * (size.rotary[kind] // 2) * FP32 for kind in kinds)
    tape = Tape(held | {"rotation tables": tables, "residual stream": size.stream})
    for kind in kinds:
        _attention(tape, size, kind, inference.context)
    _experts(tape, size)
    vocabulary = spec.model.vocab
    tape.hold("logits", inference.batch * vocabulary * size.element)
    copied = vocabulary * size.d_model * size.element if size.low else 0
    tape.touch("head, cast", copied)
    if size.low:
        tape.touch("logits in fp32", inference.batch * vocabulary * FP32)
    return Sum(name, tape.peak_items())


def _attention(tape: Tape, size: Sizes, kind: LayerKind, context: int) -> None:
    e, d = size.element, size.d_model
    queries = size.tokens * size.heads * size.head_dim
    keys = size.tokens * size.kv_heads * size.head_dim
    width = (size.heads + 2 * size.kv_heads) * size.head_dim
    tape.hold("normalised input", size.stream)
    tape.hold("qkv", (queries + 2 * keys) * e)
    if size.low:
        tape.touch("weights, cast", width * d * e)
    half = size.tokens * (size.heads + size.kv_heads) * (size.rotary[kind] // 2)
    rotated = (queries + keys) * e
    if size.low:
        part = half * e
        tape.touch(TEMPORARIES, max(part + 5 * half * FP32, 2 * half * FP32 + 2 * part + rotated))
    else:
        tape.touch(TEMPORARIES, max(4 * half * FP32, 2 * half * FP32 + rotated))
    tape.hold("rotated queries and keys", rotated)
    window = size.window[kind]
    seen = context
    if window is not None and size.length > 1:
        seen = min(window - 1, context - size.length) + size.length
        tape.hold("keys and values seen", 2 * size.batch * seen * keys // size.tokens * e)
        # keys or values, out of the ring into their order, before the new ones join them
        before = (seen - size.length) * size.kv_heads * size.head_dim * e
        tape.touch("ring, in order", size.batch * before)
    elif window is not None:
        seen = min(window, context)
    if size.kernels[kind] == "math":
        serving_scores(tape, size, kind, seen)
    else:
        tape.hold("attention output", queries * e + size.tokens * size.heads * FP32)
        if size.sinks:
            wide = queries * (FP32 + e) + 2 * size.tokens * size.heads * FP32
            tape.touch(TEMPORARIES, wide)
    tape.hold("attention projection", size.stream)
    if size.low:
        tape.touch("weights, cast", size.heads * size.head_dim * d * e)
    for name in ("qkv", "rotated queries and keys", "keys and values seen", "attention output"):
        if name in tape.items:
            tape.drop(name)
    tape.touch("layer input", size.stream)
    tape.drop("attention projection", "normalised input")


def _experts(tape: Tape, size: Sizes) -> None:
    e, d = size.element, size.d_model
    tape.hold("layer input", size.stream)
    # of the three norms this one has the most beside it
    tape.touch(TEMPORARIES, (3 if size.low else 2) * size.wide)
    tape.hold("normalised input", size.stream)
    probabilities = size.tokens * size.experts * FP32
    if size.low:
        tape.touch(TEMPORARIES, size.wide + probabilities)
    tape.hold("routing", probabilities + size.rows * (3 * INT64 + FP32))
    tape.touch(TEMPORARIES, 3 * size.rows * INT64)
    rows = size.rows * d * e
    block = (size.experts, size.rows * size.d_ff * e, rows if size.gathers else 0, rows)
    both = size.gathers or size.saves
    _swiglu(tape, size, block, size.d_ff, both=both, routed=True)
    tape.hold("expert output", size.stream)
    if size.shared:
        block = (1, size.tokens * size.shared * e, 0, size.stream)
        _swiglu(tape, size, block, size.shared, both=True, routed=False)
        tape.touch("shared output", 2 * size.stream)
    tape.touch("layer output", size.stream)
    tape.drop("layer input", "normalised input", "routing", "expert output")


def _swiglu(
    tape: Tape,
    size: Sizes,
    block: tuple[int, int, int, int],
    width: int,
    *,
    both: bool,
    routed: bool,
) -> None:
    """A block of (experts, hidden bytes, gathered bytes, output bytes) of hidden `width`."""
    experts, hidden, gathered, out = block
    if size.low:
        tape.hold("weights, cast", experts * 3 * width * size.d_model * size.element)
    gate_up = 2 * hidden if both else 0
    kept = 2 * hidden if size.saves else 0
    chunk = activation_bytes(size, hidden // (width * size.element), width)
    summed = size.stream + (combine_bytes(size) if routed else 0)
    tape.touch(
        "expert gate, up and rows",
        max(gate_up + gathered, gate_up + hidden + chunk, kept + out + max(hidden, summed)),
    )
    if size.low:
        tape.drop("weights, cast")
