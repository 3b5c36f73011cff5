from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec

SMALLEST = 16


@partial(
    SpecRule,
    code="KL002",
    title="every side of a tile is at least 16",
    why="A matrix product in Triton has no side below 16.",
    bad="kernel: {block_t: 8, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}",
    good="kernel: {block_t: 16, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}",
    reads=("kernel",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.kernel == "auto":
        return
    sides = {
        "block_t": spec.kernel.block_t,
        "block_k": spec.kernel.block_k,
        "block_n": spec.kernel.block_n,
    }
    for name, side in sides.items():
        if side < SMALLEST:
            yield Problem(
                f"kernel.{name}",
                f"{name} is {side}, and a product needs at least {SMALLEST}",
                f"set it to {SMALLEST} or more",
            )
