"""Bytes alive during a training step: the walk over its moments.

A step holds the same things in the same order every time, so the walk goes once over each
*kind* of layer and adds: below the layer whose backward runs lie the saved tensors of the layers
before it, above it the gradients of those after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gptoss_builder.plan.layer_memory import DX, DY, GRADIENTS, TEMPORARIES, Layer, norm_backward
from gptoss_builder.plan.schema import Execution, Moment, ParameterCounts
from gptoss_builder.plan.sizes import FP32, INT64, Sizes, loss_block, sizes
from gptoss_builder.plan.tape import Sum, Tape
from gptoss_builder.spec.schema import LayerKind, Spec, TrainingSpec

SAVED = "saved by the layers"
TABLES = "rotation tables"
INPUTS = "tokens and labels"
HIDDEN = "hidden states"


def training_moments(
    spec: Spec, execution: Execution, parameters: ParameterCounts, *, scratch: bool = True
) -> tuple[Moment, ...]:
    """The sums of `training_sums` as the plan shows them."""
    return tuple(
        one.moment() for one in training_sums(spec, execution, parameters, scratch=scratch)
    )


def training_sums(
    spec: Spec, execution: Execution, parameters: ParameterCounts, *, scratch: bool = True
) -> tuple[Sum, ...]:
    """The moments of one optimizer step, in their order; the backward's is its worst layer.

    `scratch` counts what kernels allocate inside, which fake tensors cannot show.

    Raises:
        ValueError: the spec has no training.
    """
    return _step(spec, execution, parameters, scratch=scratch).sums()


def training_floor(spec: Spec, execution: Execution, parameters: ParameterCounts) -> int:
    """Bytes that are held when the forward ends: at most the peak, at a part of its cost.

    Raises:
        ValueError: the spec has no training.
    """
    step = _step(spec, execution, parameters, scratch=True)
    return sum(step.held.values()) + sum(step.kept()) + step.size.stream


def _step(spec: Spec, execution: Execution, parameters: ParameterCounts, *, scratch: bool) -> _Step:
    training = spec.training
    if training is None:
        raise ValueError("the spec has no training")
    size = sizes(spec, execution, training.micro_batch, training.context)
    return _Step(spec, execution, parameters, training, size, scratch=scratch)


@dataclass(slots=True)
class _Worst:
    """The worst moment so far."""

    name: str
    peak: int
    items: dict[str, int]


class _LayerTapes(NamedTuple):
    """The walks over one kind of layer; nothing is added to them any more."""

    forward: Tape
    """Left with what it saves: its own input, not its output."""
    backward: Tape
    """From the moment when the gradient of its output arrives."""


@lru_cache(maxsize=64)
def _layer_tapes(size: Sizes, kind: LayerKind, fresh: bool, scratch: bool) -> _LayerTapes:
    # the rows of a table over checkpoint periods share their layers
    layer = Layer(size, kind, fresh=fresh, scratch=scratch)
    forward = Tape({"layer input": size.stream})
    layer.forward(forward)
    forward.drop("layer output")
    backward = Tape({**forward.items, DY: size.stream})
    layer.backward(backward)
    return _LayerTapes(forward, backward)


class _Step:
    def __init__(
        self,
        spec: Spec,
        execution: Execution,
        parameters: ParameterCounts,
        training: TrainingSpec,
        size: Sizes,
        *,
        scratch: bool,
    ) -> None:
        self.training, self.size, self.parameters = training, size, parameters
        self.tied = spec.model.tie_embeddings
        self.head = spec.model.vocab * spec.model.d_model
        self.vocab = spec.model.vocab
        self.kinds = spec.layer_kinds()
        self.checkpointed = frozenset(execution.checkpointed_layers)
        # With one micro-batch gradients appear during the backward; with more, the last
        # micro-batch, which is the worst, finds them all there.
        self.fresh = training.accumulate == 1
        self.layers = {
            kind: _layer_tapes(size, kind, self.fresh, scratch)
            for kind in dict.fromkeys(self.kinds)
        }
        self.tables = {
            kind: 2 * size.length * (size.rotary[kind] // 2) * FP32 for kind in self.layers
        }
        self.held = self._held(execution)

    def sums(self) -> tuple[Sum, ...]:
        forward = {kind: tapes.forward for kind, tapes in self.layers.items()}
        kept = self.kept()
        # the last layer's output, the final norm's input, is saved beside the layers' own
        stored = self.held | {SAVED: sum(kept) + self.size.stream}
        loss = self._loss(stored)
        optimizer = {**self.held, GRADIENTS: self.parameters.total * FP32, TABLES: 0}
        return (
            self._forward_moment(stored, forward, kept),
            Sum("loss", loss.peak_items()),
            self._backward(forward, kept),
            Sum("optimizer", optimizer),
        )

    def kept(self) -> list[int]:
        """What each layer keeps for the backward."""
        return [
            self.size.stream if layer in self.checkpointed else self.layers[kind].forward.live
            for layer, kind in enumerate(self.kinds)
        ]

    def _held(self, execution: Execution) -> dict[str, int]:
        counts, size = self.parameters, self.size
        held = {
            "parameters": counts.total * FP32,
            "optimizer moments": 2 * counts.total * FP32,
            TABLES: sum(self.tables.values()),
            INPUTS: 2 * self.training.accumulate * size.tokens * INT64,
        }
        if size.low:
            held["bf16 copies"] = 2 * copied_parameters(counts)
        if not self.fresh:
            held[GRADIENTS] = counts.total * FP32
        return held

    def _forward_moment(
        self, stored: dict[str, int], forward: dict[LayerKind, Tape], kept: list[int]
    ) -> Sum:
        """The worst of the last layer of each kind and the final norm."""
        tape = Tape(stored)
        tape.hold("final norm statistics", self.size.tokens * FP32)
        if not self.size.fused:
            tape.touch(TEMPORARIES, (3 if self.size.low else 2) * self.size.wide)
        tape.hold(HIDDEN, self.size.stream)
        best, items = tape.peak, tape.peak_items()
        fixed = sum(self.held.values())
        for kind, walk in forward.items():
            last = len(self.kinds) - 1 - self.kinds[::-1].index(kind)
            below = sum(kept[:last])
            if fixed + below + walk.peak > best:
                best = fixed + below + walk.peak
                items = _merged(self.held, {SAVED: below}, walk.peak_items())
        return Sum("forward", items)

    def _loss(self, stored: dict[str, int]) -> Tape:
        """`train.loss.linear_cross_entropy`: both gradients are made in its forward."""
        size, training = self.size, self.training
        tape = Tape(stored)
        tape.hold("final norm statistics", size.tokens * FP32)
        tape.hold(HIDDEN, size.stream)
        if size.low:
            tape.hold("head in bf16", self.head * size.element)
        tape.hold(DY, size.stream)
        tape.hold("gradient of the head", self.head * FP32)
        chunk = min(training.loss_chunk, size.tokens)
        logits = chunk * self.vocab
        tape.hold("logits of a chunk", logits * size.element)
        blocks = 2 * (logits // loss_block(self.vocab)) * FP32
        if size.fused:
            tape.touch("maxima and sums of blocks", blocks)
        else:
            tape.touch("fp32 copy of the logits", logits * FP32 + blocks)
        return tape

    def _backward(self, forward: dict[LayerKind, Tape], kept: list[int]) -> Sum:
        """The worst of the final norm's backward, every layer's and the embedding's."""
        base = {**self.held, GRADIENTS: self.held.get(GRADIENTS, 0), HIDDEN: self.size.stream}
        if self.tied:
            base["gradient of the head"] = self.head * FP32
        elif self.fresh:
            base[GRADIENTS] += self.head * FP32
        start = {**base, SAVED: sum(kept) + self.size.stream, DY: self.size.stream, DX: 0}
        norm = Tape(start)
        if not self.tied and not self.fresh:
            # until it has joined the sum
            norm.touch("gradient of the head", self.head * FP32)
        norm.hold("final norm statistics", self.size.tokens * FP32)
        norm_backward(norm, self.size, fresh=self.fresh)
        worst = _Worst("backward of the final norm", norm.peak, norm.peak_items())
        base[TABLES] = 0
        grown = self._layers_backward(worst, base, forward, kept)
        end = Tape(_merged(base, {GRADIENTS: grown}, {DY: self.size.stream}))
        if self.size.low:
            end.hold("gradient of the embedding's rows", self.size.wide)
            end.drop(DY)
        end.touch("gradient of the embedding", self.head * FP32)
        if end.peak > worst.peak:
            return Sum("backward of the embedding", end.peak_items())
        return Sum(worst.name, worst.items)

    def _layers_backward(
        self,
        worst: _Worst,
        base: dict[str, int],
        forward: dict[LayerKind, Tape],
        kept: list[int],
    ) -> int:
        """Raise `worst` where a layer is worse; returns the gradients that all layers made."""
        first = {kind: self.kinds.index(kind) for kind in self.layers}
        walks = {kind: tapes.backward for kind, tapes in self.layers.items()}
        fixed, below, grown = sum(base.values()), sum(kept), 0
        found: tuple[int, Tape, dict[str, int]] | None = None
        for layer in reversed(range(len(self.kinds))):
            below -= kept[layer]
            kind = self.kinds[layer]
            # a kind's table dies with the backward of its first layer
            tables = sum(table for other, table in self.tables.items() if first[other] <= layer)
            candidates = [(walks[kind], 0)]
            if layer in self.checkpointed:
                # its forward runs again first, beside the gradient that came in
                candidates.append((forward[kind], self.size.stream))
            for tape, beside in candidates:
                peak = fixed + tables + below + grown + tape.peak + beside
                if peak > worst.peak:
                    worst.peak = peak
                    others = {SAVED: below, GRADIENTS: grown, TABLES: tables, DY: beside}
                    found = layer, tape, others
            grown += walks[kind].items.get(GRADIENTS, 0)
        if found is not None:
            layer, tape, others = found
            worst.name = f"backward of layer {layer}"
            worst.items = _merged(base, others, tape.peak_items())
        return grown


def _merged(*parts: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            total[name] = total.get(name, 0) + size
    return total


def copied_parameters(parameters: ParameterCounts) -> int:
    """Parameters that are copied to bf16: the matrices of attention and experts."""
    return parameters.attention + parameters.experts + parameters.shared_experts
