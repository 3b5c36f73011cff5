"""What a layer keeps for its backward, tensor by tensor, in bytes.

Each entry mirrors a line of the model's code; `tests/plan/test_memory_oracle.py` runs the real
model under fake tensors and fails when the two disagree.

Legend: T tokens of a micro-batch, D d_model, H query heads, K key/value heads, d head_dim,
E experts, k choices, F d_ff, n shared experts; e bytes of an element in the products' type.
"""

from __future__ import annotations

from gptoss_builder.plan.counts import ELEMENT_BYTES
from gptoss_builder.plan.schema import Execution
from gptoss_builder.spec.schema import LayerKind, Spec

FP32 = 4
INT64 = 8


def saved_by_layer(spec: Spec, execution: Execution, kind: LayerKind) -> dict[str, int]:
    """Bytes that one layer of this kind holds between forward and backward, by tensor."""
    tokens = micro_batch_tokens(spec)
    saved = {"layer input": tokens * spec.model.d_model * ELEMENT_BYTES[execution.precision]}
    saved |= _attention(spec, execution, kind, tokens)
    saved |= _experts(spec, execution, tokens)
    return saved


def micro_batch_tokens(spec: Spec) -> int:
    """T: tokens of one forward pass of training; 0 without training."""
    training = spec.training
    return training.micro_batch * training.context if training is not None else 0


def _attention(spec: Spec, execution: Execution, kind: LayerKind, tokens: int) -> dict[str, int]:
    model, attention = spec.model, spec.model.attention
    e = ELEMENT_BYTES[execution.precision]
    kernel = execution.window_attention if kind == "window" else execution.full_attention
    width = attention.heads * attention.head_dim
    key_value = 2 * attention.kv_heads * attention.head_dim
    saved = {
        "norm statistics": 2 * tokens * FP32,
        "normalised attention input": tokens * model.d_model * e,
        "queries, keys, values": tokens * (width + key_value) * e,
        "attention output": tokens * width * e,
        "residual after attention": tokens * model.d_model * e,
    }
    if kernel != "math":
        return saved | {"attention log-sum-exp": tokens * attention.heads * FP32}
    context = spec.training.context if spec.training is not None else 0
    window = attention.window if kind == "window" and attention.window else context
    return saved | {"attention scores": 2 * tokens * attention.heads * min(context, window) * FP32}


def _experts(spec: Spec, execution: Execution, tokens: int) -> dict[str, int]:
    model, moe = spec.model, spec.model.moe
    e = ELEMENT_BYTES[execution.precision]
    rows = tokens * moe.top_k
    saved = {
        "normalised expert input": tokens * model.d_model * e,
        "router probabilities": tokens * moe.experts * FP32,
        "routing": rows * (FP32 + 3 * INT64),
        "expert outputs": rows * model.d_model * e,
        "expert hidden": rows * moe.d_ff * e,
    }
    if execution.backward == "save":
        saved["gate and up"] = 2 * rows * moe.d_ff * e
    if moe.shared_experts:
        shared = tokens * moe.shared_experts * moe.d_ff * e
        saved["shared hidden"] = shared
        if execution.backward == "save":
            saved["shared gate and up"] = 2 * shared
    return saved
