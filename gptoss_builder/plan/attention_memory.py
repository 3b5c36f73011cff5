"""What the attention kernels hold: outputs, statistics, scratch."""

from __future__ import annotations

from gptoss_builder.plan.math_attention_memory import math_backward, math_forward
from gptoss_builder.plan.sizes import FP32, Sizes
from gptoss_builder.plan.tape import Tape
from gptoss_builder.spec.schema import LayerKind

TEMPORARIES = "elementwise temporaries"
GRADIENTS = "gradients"


def kernel_forward(tape: Tape, size: Sizes, kind: LayerKind) -> None:
    """From q, k and v, held, to the output and its log-sum-exp."""
    if size.kernels[kind] == "math":
        math_forward(tape, size, kind)
        return
    out = size.tokens * size.heads * size.head_dim
    statistics = size.tokens * size.heads * FP32
    tape.hold("attention output", out * size.element)
    tape.hold("attention log-sum-exp", statistics)
    if size.sinks:
        # o' = o · exp(lse − lse') is made beside o
        wide = 0 if size.fused else out * FP32 + 2 * statistics
        tape.touch(TEMPORARIES, wide + out * size.element)


def kernel_backward(
    tape: Tape, size: Sizes, kind: LayerKind, *, scratch: bool, fresh: bool
) -> None:
    """From the gradient of the output, held, to those of q, k and v."""
    if size.sinks and fresh:
        tape.hold(GRADIENTS, size.heads * FP32)
    if size.kernels[kind] == "math":
        math_backward(tape, size, kind)
        return
    keys = size.tokens * size.kv_heads * size.head_dim * size.element
    out = size.tokens * size.heads * size.head_dim
    tape.hold("gradient of q", out * size.element)
    tape.hold("gradient of k", keys)
    tape.hold("gradient of v", keys)
    if scratch and size.cuda:
        tape.touch("attention backward scratch", flash_scratch(size))
    if size.sinks and not size.fused:
        tape.touch(TEMPORARIES, 2 * out * FP32)
    tape.drop(
        "gradient of the attention output",
        "rotated queries and keys",
        "values",
        "attention output",
        "attention log-sum-exp",
    )


def flash_scratch(size: Sizes) -> int:
    """FlashAttention-2's backward: dq in fp32, one row sum a query, dk and dv a query head."""
    length = -(-size.length // 128) * 128
    width = -(-size.head_dim // 32) * 32
    queries = size.batch * size.heads * length
    expanded = 0
    if size.heads != size.kv_heads:
        expanded = 2 * size.tokens * size.heads * size.head_dim * size.element
    return queries * (width + 1) * FP32 + expanded
