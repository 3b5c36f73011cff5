from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from checkers.wording import divisors_near, either
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT001",
    title="heads is a multiple of kv_heads",
    why="Grouped-query attention gives each key and value head the same number of query heads.",
    bad="model: {attention: {heads: 8, kv_heads: 3}}",
    good="model: {attention: {heads: 8, kv_heads: 4}}",
    reads=("model.attention.heads", "model.attention.kv_heads"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    heads, kv_heads = spec.model.attention.heads, spec.model.attention.kv_heads
    if heads % kv_heads:
        yield Problem(
            "model.attention.kv_heads",
            f"kv_heads is {kv_heads}, which does not divide the {heads} query heads",
            f"set kv_heads to {either(divisors_near(heads, kv_heads))}, or change heads",
        )
