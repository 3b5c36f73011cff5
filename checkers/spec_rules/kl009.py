from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.facts import precision
from checkers.rule import Problem, TargetRule
from gptoss_builder.findings import Severity
from gptoss_builder.plan.launch import ELEMENT_BYTES, choose
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target

ENOUGH = 0.5
"""Part of the table's intensity below which a tile is called too small."""


@partial(
    TargetRule,
    code="KL009",
    title="an own tile does about as much work a byte as the table's",
    why="A small tile reads the same rows and weights more often: FLOPs a byte grow with the "
    "tile's sides. Far below the table's tile the kernel waits for memory that another launch "
    "would not touch.",
    bad="model: {moe: {dispatch: triton_grouped}}\n"
    "kernel: {block_t: 16, block_k: 32, block_n: 32, num_warps: 4, num_stages: 1}\n"
    "target: {gpu: h200}",
    good="model: {moe: {dispatch: triton_grouped}}\nkernel: auto\ntarget: {gpu: h200}",
    severity=Severity.ADVICE,
    reads=(
        "kernel",
        "model.d_model",
        "model.moe.d_ff",
        "model.moe.dispatch",
        "training.precision",
    ),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel == "auto" or spec.model.moe.dispatch != "triton_grouped":
        return
    dtype = precision(spec, target)
    if target.arch == "cpu" or (dtype == "bf16" and not ARCHITECTURES[target.arch].bf16):
        return  # The table has no row to compare with; other rules say what is wrong.
    best = choose(target.arch, dtype, spec.model.d_model, spec.model.moe.d_ff, "auto")
    element = ELEMENT_BYTES[dtype]
    own = _intensity(spec.kernel.block_t, spec.kernel.block_n, element)
    theirs = _intensity(best.block_t, best.block_n, element)
    if own < ENOUGH * theirs:
        yield Problem(
            "kernel",
            f"this tile does {own:.1f} FLOP a byte, and the table's {best.block_t} × "
            f"{best.block_n} for {target.arch} does {theirs:.1f}",
            "set kernel: auto, or suppress this advice with your own timing as the reason",
        )


def _intensity(rows: int, columns: int, element: int) -> float:
    """FLOPs a byte of a tile: two products over the tiles of x, W1 and W3 that it loads."""
    return 4 * rows * columns / ((rows + 2 * columns) * element)
