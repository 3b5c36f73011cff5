"""What parts of a training step reach of a card's rates: measured on one H200.

From the profile by component of steps of gpt_oss_lite (torch 2.11, bf16, compiled, micro-batch
8 × 4,096) unless an entry names another measurement. On another card the same fractions are
taken of its datasheet's rates. Where the code has changed since, the entry says `derived`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gptoss_builder.plan.counts import attended_pairs
from gptoss_builder.plan.schema import AttentionKernel
from gptoss_builder.targets import CARDS

MEASURED_ON = "h200"
_H200 = CARDS[MEASURED_ON]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fraction of a rate that was reached, and where that was seen."""

    value: float
    evidence: str


def _computes(teraflops: float, what: str) -> Efficiency:
    evidence = f"{teraflops:.3g} TFLOP/s on an H200: {what}"
    return Efficiency(teraflops * 1e12 / _H200.bf16_rate, evidence)


def _moves(terabytes: float, what: str) -> Efficiency:
    evidence = f"{terabytes:g} TB/s on an H200: {what}"
    return Efficiency(terabytes * 1e12 / _H200.bandwidth, evidence)


BOUND = Efficiency(1.0, "not measured: the datasheet's full rate, so the time is at least this")

VOCABULARY = _computes(754, "25.6 ms for 19.3 TFLOP")
PROJECTIONS = _computes(640, "6.5 ms for 4.2 TFLOP")
SHARED = _computes(684, "14.9 ms for 10.2 TFLOP")
_LOOP = _computes(
    254, "per-expert loop with compiled elementwise work: 7.6 ms a layer, 1.0 of them not products"
)
UP = {
    "triton": _computes(535, "the fused W1/W3 kernel, 13.9 ms for 7.4 TFLOP"),
    "grouped_mm": _computes(576, "grouped_mm alone, 65,536 rows of 768 to 2 × 1,536"),
    "loop": _LOOP,
}
EXPERTS = {
    "grouped_mm": _computes(617, "21.0 ms for 13.0 TFLOP in five products"),
    "loop": _LOOP,
}


def scores(
    kernel: AttentionKernel, context: int, window: int | None
) -> tuple[Efficiency, Efficiency] | None:
    """What attention reaches, forward and backward; None where it was not measured.

    Per FLOP over visible pairs, with 5/2 of a forward in the backward. A query takes time for each
    key that it sees and some whatever it sees, so the kernels come nearer to their full rate the
    more keys a query has on average: cuDNN's two points are two lengths of a sequence,
    FlashAttention-2's a window of 128 and none, of 4,096 tokens.
    """
    keys = attended_pairs(context, window) / context
    if kernel == "cudnn":
        return (
            _reaches(458, 266, keys, "cuDNN forward: 405 at 4,096 tokens, 454 at 65,536"),
            _reaches(419, 436, keys, "cuDNN backward: 345 at 4,096 tokens, 413 at 65,536"),
        )
    if kernel == "flash":
        return (
            _reaches(
                364,
                448,
                keys,
                "FlashAttention-2 forward: 80 with a window of 128, 0.16 ms a layer; 299 without, "
                "0.69 ms outside a step",
            ),
            _reaches(
                269,
                263,
                keys,
                "FlashAttention-2 backward: 87 with a window of 128, 0.37 ms a layer; 238 without, "
                "derived: 2.39 ms outside a step, less 0.22",
            ),
        )
    return None


def _reaches(teraflops: float, half: float, keys: float, what: str) -> Efficiency:
    """A rate of which queries that see `half` keys on average reach a half."""
    return _computes(teraflops * keys / (keys + half), what)


ATTENTION = _moves(2.8, "2.2 ms for 6.0 GB around the backward's kernels")

LOSS = _moves(3.5, "7.6 ms for 26.9 GB in two compiled passes and what surrounds them")
KEPT = _moves(4.6, "what gate and up, kept, add to a forward: 0.17 ms for 0.8 GB, 128 experts")
ACTIVATION = {
    "triton": _moves(4.2, "activation backward in one kernel, 5.2 ms for 21.7 GB"),
    "compiled": _moves(4.2, "compiled silu·mul forward of the shared experts, 0.86 ms for 3.6 GB"),
    "plain": _moves(0.26, "plain PyTorch in chunks: 9.1 ms a layer more than compiled"),
}
GATHERS = _moves(3.9, "2.15 ms for 8.5 GB")
NORMS = _moves(3.3, "7.9 ms for 26 GB: norms, residuals, rotation, sinks")
ROUTER_SECONDS = 90e-6
"""A layer's small kernels, whatever the tokens: 12 layers take 1.70 ms with 32,768 tokens and 2.32
with 65,536 on an H200."""
ROUTER = _moves(3.3, "0.62 ms for 2.0 GB, and 0.09 ms a layer whatever the tokens")
EMBEDDING = _moves(2.1, "1.1 ms for 2.3 GB")
GRADIENTS = _moves(2.2, "2.0 ms for 4.4 GB")
OPTIMIZER = _moves(3.0, "fused AdamW and the copies to bf16, 5.5 ms for 16.5 GB")
GAP_SECONDS = 3.7e-6
GAPS = Efficiency(
    1.0, "3.7 µs a launch on an H200, in one run; 1.3 to 5.1 in the five profiles on record"
)
