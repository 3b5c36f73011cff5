"""Exact counts: parameters, FLOPs of a token, bytes of the key-value cache.

A multiply-add is two FLOPs. Norms, rotary embedding, softmax and routing are left out of the
FLOPs, as everywhere in the field: they are bound by bandwidth, and `plan.cost` counts their
bytes instead.
"""

from __future__ import annotations

from gptoss_builder.plan.schema import (
    ComponentFlops,
    Execution,
    Flops,
    KVCache,
    ParameterCounts,
)
from gptoss_builder.spec.schema import LayerKind, ModelSpec, Precision, Spec

ELEMENT_BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4}
"""Bytes of one element of the type that the products run in."""


def count_parameters(model: ModelSpec) -> ParameterCounts:
    """Parameters by component; equal to the `numel` of the built model's.

    No projection has a bias; each layer has two norms of d_model and the model a final one.
    """
    attention, moe = model.attention, model.moe
    d, layers = model.d_model, model.layers
    query = attention.heads * attention.head_dim
    key_value = 2 * attention.kv_heads * attention.head_dim
    expert = 3 * d * moe.d_ff
    parts = {
        "embedding": model.vocab * d,
        "attention": layers * (d * (query + key_value) + query * d),
        "sinks": layers * attention.heads if attention.sinks else 0,
        "norms": (2 * layers + 1) * d,
        "router": layers * moe.experts * d,
        "experts": layers * moe.experts * expert,
        "shared_experts": layers * moe.shared_experts * expert,
        "head": 0 if model.tie_embeddings else model.vocab * d,
    }
    total = sum(parts.values())
    active = total - layers * (moe.experts - moe.top_k) * expert
    return ParameterCounts(**parts, total=total, active=active)


def attended_pairs(context: int, window: int | None) -> int:
    """Query-key pairs of one causal sequence; a query sees at most `window` keys, its own too."""
    width = context if window is None else min(window, context)
    return width * (width + 1) // 2 + (context - width) * width


def layer_window(spec: Spec, kind: LayerKind) -> int | None:
    """Window of a layer of this kind, in keys; None for a full layer."""
    return spec.model.attention.window if kind == "window" else None


def count_flops(spec: Spec, execution: Execution) -> Flops:
    """FLOPs of one token, averaged over the positions of the context.

    The context is the training context, or the inference context of a spec without training.
    """
    context = planned_context(spec)
    kinds = spec.layer_kinds()
    forward = _forward(spec, context, kinds)
    if spec.training is None:
        return Flops(context=context, forward=forward, backward=None, recompute=None, step=None)
    backward = _scaled(forward, 2.0)
    recompute = _recompute(spec, execution, context, kinds, forward)
    step = forward.total + backward.total + recompute.total
    return Flops(
        context=context, forward=forward, backward=backward, recompute=recompute, step=step
    )


def planned_context(spec: Spec) -> int:
    """Tokens of a training sequence, or else of a served one, or else of a window: one token."""
    if spec.training is not None:
        return spec.training.context
    return spec.inference.context if spec.inference is not None else 1


def _forward(spec: Spec, context: int, kinds: tuple[LayerKind, ...]) -> ComponentFlops:
    model, attention, moe = spec.model, spec.model.attention, spec.model.moe
    d, layers = model.d_model, len(kinds)
    width = attention.heads * attention.head_dim
    projections = d * (width + 2 * attention.kv_heads * attention.head_dim) + width * d
    expert = 2.0 * 3 * d * moe.d_ff
    return _components(
        projections=2.0 * layers * projections,
        scores=_scores(spec, context, kinds),
        router=2.0 * layers * moe.experts * d,
        experts=layers * moe.top_k * expert,
        shared_experts=layers * moe.shared_experts * expert,
        head=2.0 * model.vocab * d,
    )


def _scores(spec: Spec, context: int, kinds: tuple[LayerKind, ...]) -> float:
    """FLOPs of q·k and p·v in layers of these kinds."""
    attention = spec.model.attention
    pairs = sum(
        kinds.count(kind) * attended_pairs(context, layer_window(spec, kind))
        for kind in dict.fromkeys(kinds)
    )
    return 4.0 * attention.heads * attention.head_dim * pairs / context


def _recompute(
    spec: Spec,
    execution: Execution,
    context: int,
    kinds: tuple[LayerKind, ...],
    forward: ComponentFlops,
) -> ComponentFlops:
    """What the backward computes a second time.

    Checkpointed layers run forward again; `backward: recompute` runs the experts' up-projection
    again, two thirds of an expert (theory.txt's 6G against 4G); attention that keeps no
    probabilities makes the scores again, half of its forward.
    """
    layers = len(kinds)
    again = len(execution.checkpointed_layers) / layers
    again_kinds = tuple(kinds[layer] for layer in execution.checkpointed_layers)
    up = 2 / 3 if execution.backward == "recompute" else 0.0
    kernels = {"window": execution.window_attention, "full": execution.full_attention}
    flash_kinds = tuple(kind for kind in kinds if kernels[kind] != "math")
    return _components(
        projections=again * forward.projections,
        scores=_scores(spec, context, again_kinds) + _scores(spec, context, flash_kinds) / 2,
        router=again * forward.router,
        experts=(again + up) * forward.experts,
        shared_experts=(again + up) * forward.shared_experts,
        head=0.0,
    )


def _components(**parts: float) -> ComponentFlops:
    return ComponentFlops(**parts, total=sum(parts.values()))


def _scaled(flops: ComponentFlops, factor: float) -> ComponentFlops:
    parts = flops.model_dump(exclude={"total"})
    return _components(**{name: factor * value for name, value in parts.items()})


def count_kv_cache(spec: Spec, precision: Precision) -> KVCache | None:
    """Bytes of the key-value cache at the inference context; None without inference.

    A window layer is a ring of `window` entries, a full layer holds the whole context.
    """
    if spec.inference is None:
        return None
    attention = spec.model.attention
    context, batch = spec.inference.context, spec.inference.batch
    entry = 2 * attention.kv_heads * attention.head_dim * ELEMENT_BYTES[precision]
    kinds = spec.layer_kinds()
    ring = min(attention.window, context) if attention.window is not None else context
    window_bytes = kinds.count("window") * batch * ring * entry
    full_bytes = kinds.count("full") * batch * context * entry
    all_full = len(kinds) * batch * context * entry
    total = window_bytes + full_bytes
    return KVCache(
        window_layers_bytes=window_bytes,
        full_layers_bytes=full_bytes,
        total_bytes=total,
        all_full_bytes=all_full,
        reduction=all_full / total,
    )
