"""The model written as plainly as it can be, in float64, from its parameters by name.

It shares no code with the package. Attention is a loop over sequences, heads and queries with
an explicit softmax that has the sink as one more column; rotation is a complex product;
experts are a loop over tokens. Gradients are autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gptoss_builder.spec.schema import AttentionSpec, RopeSpec, Spec


def reference(
    parameters: Mapping[str, Tensor], spec: Spec, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits [B, T, V] and the load-balancing loss averaged over layers."""
    model = spec.model
    x = parameters["embedding"][tokens]
    losses = []
    for layer in range(model.layers):
        weights = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in parameters.items()
            if name.startswith(f"blocks.{layer}.")
        }
        kind = model.attention.pattern[layer % len(model.attention.pattern)]
        normed = rms_norm(x, weights["attention_norm.weight"], model.norm_eps)
        x = x + attention(normed, weights, model.attention, windowed=kind == "window")
        normed = rms_norm(x, weights["moe_norm.weight"], model.norm_eps)
        mixed, loss = mixture(normed.flatten(0, 1), weights, model.moe.top_k)
        x = x + mixed.view_as(x)
        losses.append(loss)
    x = rms_norm(x, parameters["norm.weight"], model.norm_eps)
    head = parameters["embedding"] if model.tie_embeddings else parameters["head"]
    return x @ head.T, sum(losses) / len(losses)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def inverse_frequencies(rope: RopeSpec, dims: int) -> list[float]:
    """As openai/gpt-oss has them: the ramp's ends are real numbers."""
    plain = [rope.theta ** (-2 * i / dims) for i in range(dims // 2)]
    yarn = rope.yarn
    if yarn is None:
        return plain

    def find(rotations: float) -> float:
        period = yarn.original_context / (rotations * 2 * math.pi)
        return (dims / 2) * math.log(period) / math.log(rope.theta)

    low, high = max(find(yarn.beta_fast), 0), min(find(yarn.beta_slow), dims - 1)
    blended = []
    for i, frequency in enumerate(plain):
        kept = 1 - min(max((i - low) / (high - low), 0), 1)
        blended.append(frequency * kept + frequency / yarn.factor * (1 - kept))
    return blended


def rotated(head: Tensor, position: int, rope: RopeSpec, dims: int) -> Tensor:
    """One head's vector at one position; its first `dims` dimensions as dims/2 complex numbers."""
    angles = torch.tensor(inverse_frequencies(rope, dims), dtype=torch.float64) * position
    scale = 0.1 * math.log(rope.yarn.factor) + 1 if rope.yarn else 1.0
    numbers = torch.complex(head[: dims // 2], head[dims // 2 : dims])
    turned = numbers * torch.polar(torch.full_like(angles, scale), angles)
    return torch.cat([turned.real, turned.imag, head[dims:]])


def attention(
    x: Tensor, weights: Mapping[str, Tensor], spec: AttentionSpec, *, windowed: bool
) -> Tensor:
    d, group = spec.head_dim, spec.heads // spec.kv_heads
    part = 1.0 if windowed else spec.rope.full_layers_rotary
    dims = round(part * d)
    rows = []
    for sequence in x:
        projected = sequence @ weights["attention.wqkv"].T
        heads = [
            [projected[t, n * d : (n + 1) * d] for n in range(spec.heads + 2 * spec.kv_heads)]
            for t in range(len(sequence))
        ]
        for t in range(len(sequence)):
            outputs = []
            for h in range(spec.heads):
                query = rotated(heads[t][h], t, spec.rope, dims)
                first = max(0, t - spec.window + 1) if windowed else 0
                scores, values = [], []
                for s in range(first, t + 1):
                    key = rotated(heads[s][spec.heads + h // group], s, spec.rope, dims)
                    scores.append(query @ key / math.sqrt(d))
                    values.append(heads[s][spec.heads + spec.kv_heads + h // group])
                if spec.sinks:
                    scores.append(weights["attention.sinks"][h])
                probabilities = torch.stack(scores).softmax(0)[: len(values)]
                outputs.append(probabilities @ torch.stack(values))
            rows.append(torch.cat(outputs))
    return torch.stack(rows).view(*x.shape[:2], -1) @ weights["attention.wo"].T


def swiglu(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    gate, up = (w13 @ x).chunk(2)
    return w2 @ (gate / (1 + torch.exp(-gate)) * up)


def mixture(x: Tensor, weights: Mapping[str, Tensor], top_k: int) -> tuple[Tensor, Tensor]:
    router = weights["moe.router"]
    experts = len(router)
    probabilities = (x @ router.T).softmax(-1)
    taken = torch.zeros(experts, dtype=x.dtype)
    outputs = []
    for token, probability in zip(x, probabilities, strict=True):
        chosen = sorted(range(experts), key=lambda e: -probability[e].item())[:top_k]
        total = sum(probability[e] for e in chosen)
        output = torch.zeros_like(token)
        for e in chosen:
            taken[e] += 1
            expert = swiglu(token, weights["moe.w13"][e], weights["moe.w2"][e])
            output = output + probability[e] / total * expert
        if "moe.shared_w13" in weights:
            output = output + swiglu(token, weights["moe.shared_w13"], weights["moe.shared_w2"])
        outputs.append(output)
    fraction = taken / (len(x) * top_k)
    return torch.stack(outputs), experts * (fraction * probabilities.mean(0)).sum()
