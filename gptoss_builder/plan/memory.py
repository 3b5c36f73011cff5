"""Bytes of a training step and of serving, moment by moment, in closed form.

A step is a walk over moments: end of the forward pass, the loss chunk, the backward of each
layer, the optimizer. At each one the sum of what is alive is taken, and the largest is the
peak. Pure Python: it runs on a laptop in well under a millisecond.
"""

from __future__ import annotations

from gptoss_builder.plan.counts import ELEMENT_BYTES
from gptoss_builder.plan.saved import FP32, INT64, micro_batch_tokens, saved_by_layer
from gptoss_builder.plan.schema import (
    Execution,
    KVCache,
    Memory,
    MemoryEstimate,
    MemoryItem,
    Moment,
    ParameterCounts,
)
from gptoss_builder.spec.schema import Spec

MIB = 2**20
WORKSPACE_BYTES = 32 * MIB
"""cuBLAS workspace of one handle and stream on Hopper (PyTorch's default)."""
CONTEXT_BYTES = 512 * MIB
"""CUDA context with PyTorch's kernels loaded: an assumption until it is measured on a card."""


def estimate_memory(
    spec: Spec, execution: Execution, parameters: ParameterCounts, cache: KVCache | None
) -> Memory:
    """Peaks of training and of serving; each None where the spec does not ask for it."""
    training = _training(spec, execution, parameters) if spec.training is not None else None
    inference = _inference(spec, execution, parameters, cache) if cache is not None else None
    return Memory(training=training, inference=inference)


def _training(spec: Spec, execution: Execution, parameters: ParameterCounts) -> MemoryEstimate:
    held = _held(execution, parameters)
    gradients = {"gradients": parameters.total * FP32}
    kinds = spec.layer_kinds()
    by_kind = {kind: saved_by_layer(spec, execution, kind) for kind in dict.fromkeys(kinds)}
    checkpointed = frozenset(execution.checkpointed_layers)
    kept = {
        layer: by_kind[kind]["layer input"]
        if layer in checkpointed
        else sum(by_kind[kind].values())
        for layer, kind in enumerate(kinds)
    }
    stored = sum(kept.values())
    forward = held | gradients | {"saved by layers": stored}
    moments = [
        _moment("end of forward", forward),
        _moment("loss", forward | _loss(spec, execution)),
    ]
    worst: Moment | None = None
    below = 0
    for layer, kind in enumerate(kinds):
        own = by_kind[kind]
        at = held | gradients | {"saved by layers below": below} | own
        moment = _moment(f"backward of layer {layer}", at | _backward(spec, execution))
        if worst is None or moment.allocated_bytes >= worst.allocated_bytes:
            worst = moment
        below += kept[layer]
    if worst is not None:
        moments.append(worst)
    moments.append(_moment("optimizer", held | gradients))
    return _estimate(moments, execution)


def _held(execution: Execution, parameters: ParameterCounts) -> dict[str, int]:
    held = {
        "parameters": parameters.total * FP32,
        "optimizer moments": 2 * parameters.total * FP32,
    }
    if execution.precision == "bf16":
        held["bf16 copies"] = 2 * copied_parameters(parameters)
    return held


def copied_parameters(parameters: ParameterCounts) -> int:
    """Parameters with a bf16 copy: the matrices of attention and experts."""
    return parameters.attention + parameters.experts + parameters.shared_experts


def _loss(spec: Spec, execution: Execution) -> dict[str, int]:
    training = spec.training
    if training is None:
        return {}
    e = ELEMENT_BYTES[execution.precision]
    tokens = micro_batch_tokens(spec)
    chunk = min(training.loss_chunk, tokens)
    vocabulary, d = spec.model.vocab, spec.model.d_model
    items = {
        "logits of a chunk": chunk * vocabulary * (e + FP32),
        "gradient of hidden states": tokens * d * e,
        "gradient of the head": vocabulary * d * FP32,
    }
    if execution.precision == "bf16":
        items["head in bf16"] = vocabulary * d * 2
    return items


def _backward(spec: Spec, execution: Execution) -> dict[str, int]:
    model, moe = spec.model, spec.model.moe
    e = ELEMENT_BYTES[execution.precision]
    tokens = micro_batch_tokens(spec)
    rows = tokens * moe.top_k
    return {
        "gradients in flight": (3 * tokens * model.d_model + 3 * rows * moe.d_ff) * e,
        "gradient of one layer's experts": moe.experts * 2 * moe.d_ff * model.d_model * e,
    }


def _inference(
    spec: Spec, execution: Execution, parameters: ParameterCounts, cache: KVCache | None
) -> MemoryEstimate | None:
    if spec.inference is None or cache is None:
        return None
    model, moe = spec.model, spec.model.moe
    e = ELEMENT_BYTES[execution.precision]
    held = {"parameters": parameters.total * e, "key-value cache": cache.total_bytes}
    prompt = min(spec.inference.prefill_chunk, spec.inference.context) * spec.inference.batch
    rows = prompt * moe.top_k

    def step(tokens: int, rows: int) -> dict[str, int]:
        return {
            "activations": tokens * (6 * model.d_model) * e
            + rows * (3 * moe.d_ff + 2 * model.d_model) * e
            + rows * 3 * INT64,
            "logits": spec.inference.batch * model.vocab * FP32 if spec.inference else 0,
        }

    batch = spec.inference.batch
    return _estimate(
        [
            _moment("prefill", held | step(prompt, rows)),
            _moment("decode", held | step(batch, batch * moe.top_k)),
        ],
        execution,
    )


def _moment(name: str, parts: dict[str, int]) -> Moment:
    items = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    return Moment(
        name=name,
        allocated_bytes=sum(parts.values()),
        items=tuple(MemoryItem(name=part, bytes=size) for part, size in items),
    )


def _estimate(moments: list[Moment], execution: Execution) -> MemoryEstimate:
    peak = max(moments, key=lambda moment: moment.allocated_bytes)
    cuda = execution.device == "cuda"
    allocated = peak.allocated_bytes
    reserved = allocated + allocated // 20 + WORKSPACE_BYTES if cuda else allocated
    context = CONTEXT_BYTES if cuda else 0
    return MemoryEstimate(
        moments=tuple(moments),
        peak=peak.name,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        context_bytes=context,
        total_bytes=reserved + context,
    )
