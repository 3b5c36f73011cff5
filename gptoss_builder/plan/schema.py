"""The plan as frozen pydantic models: what resolve decided and what everything below reads.

`plan.json` in a build directory is this model; its published JSON Schema is generated from
here. Sizes are bytes, rates are per second, counts are plain numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gptoss_builder.spec.schema import Dispatch, Frozen, Precision, Spec
from gptoss_builder.targets import Target

Products = Literal["grouped_mm", "loop"]
AttentionKernel = Literal["math", "flash", "cudnn"]
Strings = Annotated[tuple[str, ...], Field(strict=False)]
Layers = Annotated[tuple[int, ...], Field(strict=False)]


class LaunchConfig(Frozen):
    """How the W1/W3 kernel is launched."""

    block_t: int
    """Rows (tokens) of a tile."""
    block_k: int
    """Step of the reduction over d_model."""
    block_n: int
    """Columns of a tile in each of gate and up."""
    num_warps: int
    """Warps of a program."""
    num_stages: int
    """Depth of the software pipeline."""
    loads: Literal["pointers", "descriptors"] = "pointers"
    """`descriptors` go through the tensor memory accelerator of sm90 and later."""
    persistent: bool = False
    """One program a multiprocessor that walks over tiles, instead of one program a tile."""
    source: Literal["measured", "compiled", "spec"]
    """Where the row comes from: timed on that card, compiled for it, or the spec's own."""
    evidence: str
    """The measurement or the compile result behind the row."""


class ParameterCounts(Frozen):
    """Parameters by component, the whole model; `head` is 0 when it is tied."""

    embedding: int
    attention: int
    sinks: int
    norms: int
    router: int
    experts: int
    shared_experts: int
    head: int
    total: int
    active: int
    """total − layers · (experts − top_k) · 3 · d_model · d_ff."""


class Execution(Frozen):
    """What runs, by name. Nothing below this decides again."""

    device: Literal["cuda", "cpu"]
    precision: Precision
    dispatch: Dispatch
    up_products: Literal["triton", "grouped_mm", "loop"]
    """W1‖W3 of the experts, forward."""
    down_products: Products
    """W2 of the experts, forward and backward."""
    backward_products: Products
    """Products of the W1/W3 backward."""
    backward: Literal["recompute", "save"]
    window_attention: AttentionKernel
    full_attention: AttentionKernel
    checkpointed_layers: Layers
    """Layers whose activations are recomputed in the backward."""
    compile: bool
    optimizer: Literal["adamw_fused"] = "adamw_fused"


class Plan(Frozen):
    """Everything that a spec comes to on one target."""

    plan: Literal[1] = 1
    """Version of this format."""
    spec: Spec
    """The spec, with the target that was asked for."""
    target: Target
    """The card, from the table."""
    execution: Execution
    """What runs."""
    launch: LaunchConfig | None
    """Launch configuration of the W1/W3 kernel; null where the kernel does not run."""
    parameters: ParameterCounts
    """Exact counts; they equal the built model's."""
