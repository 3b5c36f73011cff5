from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from checkers.wording import either
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="KL001",
    title="tiles and warps are powers of two",
    why="Triton's blocks are made of powers of two; anything else does not compile.",
    bad="kernel: {block_t: 96, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}",
    good="kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}",
    reads=("kernel",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    if spec.kernel == "auto":
        return
    sizes = {
        "block_t": spec.kernel.block_t,
        "block_k": spec.kernel.block_k,
        "block_n": spec.kernel.block_n,
        "num_warps": spec.kernel.num_warps,
    }
    for name, size in sizes.items():
        if size & (size - 1):
            low = 1 << (size.bit_length() - 1)
            yield Problem(
                f"kernel.{name}",
                f"{name} is {size}, not a power of two",
                f"set it to {either((low, 2 * low))}",
            )
