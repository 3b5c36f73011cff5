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
UpProducts = Literal["triton", "grouped_mm", "loop"]
AttentionKernel = Literal["math", "flash", "cudnn"]
Elementwise = Literal["triton", "compiled", "plain"]
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
    up_products: UpProducts
    """W1‖W3 of the experts, forward."""
    down_products: Products
    """W2 of the experts, forward and backward."""
    backward_products: Products
    """Products of the W1/W3 backward."""
    backward: Literal["recompute", "save"]
    elementwise: Elementwise
    """The experts' activation, weighted sum and choice, shared experts included: kernels made by
    torch.compile, the same with Triton's own backward of the activation, or PyTorch in chunks."""
    window_attention: AttentionKernel
    full_attention: AttentionKernel
    checkpointed_layers: Layers
    """Layers whose activations are recomputed in the backward."""
    compile: bool
    optimizer: Literal["adamw_fused"] = "adamw_fused"


class ComponentFlops(Frozen):
    """FLOPs of one token by component; a multiply-add is two."""

    projections: float
    """Attention's q, k, v and output projections."""
    scores: float
    """Attention's q·k and p·v over the exact causal pairs, averaged over positions."""
    router: float
    experts: float
    """Routed experts, top_k a token."""
    shared_experts: float
    head: float
    """Vocabulary projection."""
    total: float


class Flops(Frozen):
    """FLOPs of one token. Without training only `forward` is there."""

    context: int
    """Tokens of the sequence that the averages are over."""
    forward: ComponentFlops
    backward: ComponentFlops | None
    """Twice the forward: each product has two in its gradient."""
    recompute: ComponentFlops | None
    """What the backward computes again: checkpointed layers, up-projections, scores."""
    step: float | None
    """Forward, backward and recomputation together."""


class KVCache(Frozen):
    """Bytes of the key-value cache at the inference context and batch."""

    window_layers_bytes: int
    full_layers_bytes: int
    total_bytes: int
    all_full_bytes: int
    """What it would be if every layer were full."""
    reduction: float
    """all_full_bytes / total_bytes."""


class MemoryItem(Frozen):
    """Bytes of one kind of tensor."""

    name: str
    bytes: int


MemoryItems = Annotated[tuple[MemoryItem, ...], Field(strict=False)]


class Moment(Frozen):
    """What is allocated at one moment of a step."""

    name: str
    allocated_bytes: int
    items: MemoryItems
    """The sum's terms, largest first."""


class MemoryEstimate(Frozen):
    """Peak of one use of the model, in bytes."""

    moments: Annotated[tuple[Moment, ...], Field(strict=False)]
    """In the order in which a step reaches them."""
    peak: str
    """Name of the largest moment."""
    allocated_bytes: int
    """Peak of the tensors that are alive together."""
    reserved_bytes: int
    """Peak that the caching allocator holds: allocated, rounded, fragmented, workspaces."""
    context_bytes: int
    """The CUDA context, outside the allocator."""
    total_bytes: int
    """reserved_bytes + context_bytes: what must fit beside the margin."""


class Memory(Frozen):
    """Memory of training and of serving; each null where the spec does not ask for it."""

    training: MemoryEstimate | None
    inference: MemoryEstimate | None


class Heuristic(Frozen):
    """theory.txt's memory formula, in GiB, for comparison: nothing is decided by it."""

    gib: float
    """With an overhead of 2.0 GiB."""
    a100_overhead_gib: float
    """With its overhead of an A100 of 80 GB: 13.6 GiB."""


class CostItem(Frozen):
    """Time of one part of a training step."""

    name: str
    seconds: float
    flops: float
    """0 where bytes bound it."""
    bytes: float
    """0 where FLOPs bound it."""
    efficiency: float
    """Part of the card's dense rate, or of its bandwidth, that is reached."""
    evidence: str
    """Where the efficiency comes from."""


class Cost(Frozen):
    """Time and money of training on one card."""

    source: Literal["measured", "derived", "bound"]
    """What the time is predicted from; of this spec nothing was run. `measured`: efficiencies
    measured on this card; `derived`: an H200's, at this card's rates; `bound`: a part was
    measured nowhere and counts at the full rate, so it takes at least this."""
    step_seconds: float
    """One optimizer step: all its micro-batches and the update."""
    tokens_per_second: float
    gpu_hours: float
    """The whole run."""
    model_flops_utilization: float
    """Forward and backward FLOPs without recomputation, over the card's dense rate."""
    items: Annotated[tuple[CostItem, ...], Field(strict=False)]
    price_per_hour: float | None
    """What the user said an hour costs, in any currency; there is no price table."""
    price: float | None
    """gpu_hours · price_per_hour."""


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
    kernel_build: Literal["compiled", "not_compiled", "not_used"]
    """Whether the kernel was compiled for the target when the build was made: `not_compiled`
    until `gptoss-build` has done it, and with `--no-compile`."""
    parameters: ParameterCounts
    """Exact counts; they equal the built model's."""
    flops: Flops
    """FLOPs of one token."""
    kv_cache: KVCache | None
    """The key-value cache; null without inference."""
    memory: Memory
    """Bytes by moment and component."""
    heuristic: Heuristic | None
    """theory.txt's formula; null without training."""
    cost: Cost | None
    """Time and money; null without training and on `cpu`, whose rates are unknown."""
