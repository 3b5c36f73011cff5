"""The sizes that the memory model works with, read once from a spec and its execution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from gptoss_builder.plan.counts import ELEMENT_BYTES
from gptoss_builder.plan.schema import AttentionKernel, Execution
from gptoss_builder.spec.schema import LayerKind, Spec

FP32 = 4
INT64 = 8


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ByKind(Generic[Value]):
    """A value for each kind of layer; unlike a dict it can be a key of a cache."""

    window: Value
    full: Value

    def __getitem__(self, kind: LayerKind) -> Value:
        return self.window if kind == "window" else self.full


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of one forward pass; names as in the model's code."""

    batch: int
    length: int
    """New tokens of each sequence."""
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: ByKind[int]
    """Dimensions of a head that are rotated."""
    window: ByKind[int | None]
    kernels: ByKind[AttentionKernel]
    sinks: bool
    experts: int
    top_k: int
    d_ff: int
    shared: int
    """Width of the shared experts together."""
    gathers: bool
    """Whether the up-projection needs a sorted copy of its rows; the Triton kernel does not."""
    saves: bool
    """`backward: save`."""
    element: int
    """Bytes of an element of the products' type."""
    low: bool
    """Whether that is narrower than the fp32 of norms, rotation and router."""
    fused: bool
    """Whether torch.compile fuses elementwise chains, so that their temporaries never exist."""
    plain: bool
    """Whether the experts' elementwise work is plain PyTorch, in chunks."""
    in_place: bool
    """Whether the backward of their activation writes over its inputs."""
    cuda: bool
    tokens: int
    rows: int
    """Rows that the routed experts work on: tokens · top_k."""
    stream: int
    """Bytes of one [tokens, d_model] tensor of the residual stream."""
    wide: int
    """The same in fp32."""


def loss_block(vocab: int) -> int:
    """Logits of a row that the loss looks at as one block: a divisor of `vocab`.

    torch.compile keeps up to 1,024 of a row in registers and reads them once; where the largest
    power of two in `vocab` is short, a block is the whole row.
    """
    block = math.gcd(vocab, 1024)
    return block if block >= 32 else vocab


def sizes(spec: Spec, execution: Execution, batch: int, length: int) -> Sizes:
    """Sizes of a forward pass over `batch` sequences of `length` new tokens."""
    model, attention, moe = spec.model, spec.model.attention, spec.model.moe
    element = ELEMENT_BYTES[execution.precision]
    tokens = batch * length
    return Sizes(
        batch=batch,
        length=length,
        d_model=model.d_model,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        rotary=ByKind(
            attention.head_dim, round(attention.rope.full_layers_rotary * attention.head_dim)
        ),
        window=ByKind(attention.window, None),
        kernels=ByKind(execution.window_attention, execution.full_attention),
        sinks=attention.sinks,
        experts=moe.experts,
        top_k=moe.top_k,
        d_ff=moe.d_ff,
        shared=moe.shared_experts * moe.d_ff,
        gathers=execution.up_products != "triton",
        saves=execution.backward == "save",
        element=element,
        low=element < FP32,
        fused=execution.compile,
        plain=execution.elementwise == "plain",
        in_place=execution.elementwise == "triton",
        cuda=execution.device == "cuda",
        tokens=tokens,
        rows=tokens * moe.top_k,
        stream=tokens * model.d_model * element,
        wide=tokens * model.d_model * FP32,
    )
