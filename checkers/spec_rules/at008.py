from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT008",
    title="the rotated dimensions are an even number",
    why="RoPE turns pairs: the first half of the rotated dimensions with the second. Window "
    "layers rotate all of head_dim, full layers its first full_layers_rotary part.",
    bad="model: {attention: {head_dim: 96, rope: {full_layers_rotary: 0.3}}}",
    good="model: {attention: {head_dim: 96, rope: {full_layers_rotary: 0.75}}}",
    reads=(
        "model.attention.head_dim",
        "model.attention.rope.full_layers_rotary",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    head_dim = spec.model.attention.head_dim
    part = spec.model.attention.rope.full_layers_rotary
    if head_dim % 2:
        yield Problem(
            "model.attention.head_dim",
            f"head_dim is {head_dim}, an odd number, and RoPE rotates pairs",
            f"set head_dim to {head_dim - 1} or {head_dim + 1}",
        )
        return
    rotated = part * head_dim
    if abs(rotated - round(rotated)) > 1e-6 or round(rotated) % 2 or round(rotated) == 0:
        nearest = min(max(2 * round(rotated / 2), 2), head_dim)
        yield Problem(
            "model.attention.rope.full_layers_rotary",
            f"full_layers_rotary {part} of head_dim {head_dim} is {rotated:g} dimensions, "
            "which is not an even number",
            f"set full_layers_rotary to {nearest / head_dim:.6g}, which is {nearest} dimensions",
        )
