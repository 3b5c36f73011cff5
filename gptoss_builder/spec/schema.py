"""The spec as frozen, closed pydantic models.

A model here judges each field by itself. Whether fields agree with each other is the
business of `checkers.spec_rules`; what they come to on a card, of `gptoss_builder.plan`.
The text beneath a field is its one explanation: the JSON Schema, the reference page and
the editor's hover are made from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from gptoss_builder.spec.descriptions import describe

HARD_CAP = 8192
"""Largest `d_model` and `d_ff`; enforced here, at resolve and in the op itself."""


def _from_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _whole(value: object) -> object:
    if type(value) is not int:  # True and 1.0 equal 1, and a literal asks for no more
        raise ValueError("not a whole number")
    return value


FromList = BeforeValidator(_from_list)
"""A tuple that a file writes as a list; a set or a generator, which lax mode takes, is refused."""

Count = Annotated[int, Field(ge=1, le=2**40)]
Context = Annotated[int, Field(ge=1, le=2**24)]
Index = Annotated[int, Field(ge=0, le=2**40)]
Width = Annotated[int, Field(ge=1, le=HARD_CAP)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
NonNegative = Annotated[float, Field(ge=0, le=1e30)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
]
RuleCode = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}[0-9]{3}$")]
LayerKind = Literal["window", "full"]
LayerPattern = Annotated[tuple[LayerKind, ...], Field(min_length=1, max_length=1024), FromList]
Dispatch = Literal["stacked", "grouped_mm", "triton_grouped"]
Precision = Literal["bf16", "fp32"]


class Frozen(BaseModel):
    """Base of every part of the spec: immutable, closed, no coercion between types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra=describe,
    )


class YarnSpec(Frozen):
    """YaRN context extension (Peng et al. 2023, arXiv:2309.00071)."""

    factor: Annotated[float, Field(ge=1, le=1e6)]
    """Context extension factor: target context over original context."""
    original_context: Context
    """Context length, in tokens, that the frequencies were made for."""
    beta_fast: Positive = 32.0
    """Rotations over the original context above which a dimension is left alone."""
    beta_slow: Positive = 1.0
    """Rotations over the original context below which a dimension is fully interpolated."""
    attention_factor: Positive | None = None
    """Multiplies cos and sin; by default 0.1·ln(factor) + 1."""


class RopeSpec(Frozen):
    """Rotary position embedding: rotates the first half of the dimensions with the second."""

    theta: Annotated[float, Field(gt=1, le=1e30)] = 10000.0
    """Base of the geometric series of frequencies."""
    yarn: YarnSpec | None = None
    """Context extension; null is plain RoPE."""
    full_layers_rotary: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of head_dim that full layers rotate (the first dimensions); window layers rotate all."""


class AttentionSpec(Frozen):
    """Grouped-query attention, alternating window and full layers."""

    heads: Count
    """Query heads."""
    kv_heads: Count
    """Key and value heads; heads must be a multiple of it."""
    head_dim: Annotated[int, Field(ge=2, le=1024)]
    """Width of one head."""
    pattern: LayerPattern = ("full",)
    """Kind of each layer, repeated over the layers from layer 0."""
    window: Count | None = None
    """Keys that a query of a window layer sees, its own included; needed by window layers."""
    sinks: bool = True
    """One learned logit a query head that takes probability and adds no value."""
    backend: Literal["auto", "flash", "math"] = "auto"
    """`flash` needs a GPU, `math` is the explicit softmax, `auto` is settled for the target."""
    rope: RopeSpec = RopeSpec()
    """Positions."""


class MoESpec(Frozen):
    """Mixture of experts: a SwiGLU for each expert, top-k routing in fp32."""

    experts: Annotated[int, Field(ge=1, le=65536)]
    """Routed experts of a layer."""
    top_k: Annotated[int, Field(ge=1, le=65536)]
    """Experts that each token visits; their weights are normalised to a sum of one."""
    shared_experts: Annotated[int, Field(ge=0, le=1024)] = 0
    """Experts that every token visits; n of them are one SwiGLU of width n·d_ff, without a gate."""
    d_ff: Width
    """Hidden width of one expert."""
    aux_loss: NonNegative = 0.01
    """Coefficient of the load-balancing loss, which is 1.0 before it when balanced."""
    dispatch: Dispatch = "stacked"
    """What computes the experts, and nothing else does: `stacked` is a loop in plain PyTorch,
    `grouped_mm` PyTorch's grouped product, `triton_grouped` the fused W1/W3 kernel."""
    backward: Literal["recompute", "save"] = "recompute"
    """`recompute` keeps only the inputs of the up-projection; `save` keeps gate and up as well."""


class ModelSpec(Frozen):
    """The architecture."""

    vocab: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """Token ids are 0 … vocab − 1."""
    d_model: Width
    """Width of the residual stream."""
    layers: Annotated[int, Field(ge=1, le=1024)]
    """Transformer blocks."""
    tie_embeddings: bool = True
    """The output projection is the embedding matrix."""
    norm_eps: Annotated[float, Field(gt=0, le=0.1)] = 1e-5
    """Epsilon inside the square root of RMSNorm."""
    init_std: Annotated[float, Field(gt=0, le=10)] = 0.02
    """Standard deviation of the initial weights; projections into the residual stream are
    divided by √(2·layers)."""
    attention: AttentionSpec
    """Attention of every layer."""
    moe: MoESpec
    """Feed-forward of every layer."""


class OptimizerSpec(Frozen):
    """AdamW (decoupled weight decay), linear warm-up, cosine decay."""

    lr: Positive
    """Peak learning rate."""
    min_lr_ratio: Fraction = 0.1
    """Final learning rate as a part of the peak."""
    warmup_steps: Index = 0
    """Optimizer steps of linear warm-up."""
    betas: Annotated[tuple[Decay, Decay], FromList] = (0.9, 0.95)
    """Decay of the first and second moments."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.1
    """On matrices only: norms, sinks and embeddings have none."""
    grad_clip: NonNegative = 1.0
    """Largest global gradient norm; 0 is off."""


class NanGuardSpec(Frozen):
    """Skips a step whose loss or gradient norm is not finite."""

    enabled: bool = True
    """Off only with `consent`."""
    max_consecutive: Count = 5
    """Consecutive skipped steps after which the run stops."""
    consent: Text | None = None
    """Why the guard is off; recorded in the run."""


class TrainingSpec(Frozen):
    """How the model is trained."""

    context: Context
    """Tokens of one training sequence."""
    micro_batch: Count = 1
    """Sequences of one forward pass."""
    accumulate: Count = 1
    """Micro-batches of one optimizer step."""
    steps: Count
    """Optimizer steps of the whole run."""
    checkpoint_every: Index = 0
    """Gradient checkpointing of layers 0, n, 2n, …; 0 is off."""
    precision: Precision = "bf16"
    """Type of the products; parameters and optimizer state are fp32 either way."""
    optimizer: OptimizerSpec
    """Optimizer and schedule."""
    loss_chunk: Count = 8192
    """Tokens whose logits exist at one time."""
    z_loss: NonNegative = 0.0
    """Coefficient of the squared log-partition, added to the loss; 0 is off."""
    compile: bool = False
    """Run the model through torch.compile."""
    nan_guard: NanGuardSpec = NanGuardSpec()
    """What happens when a step is not finite."""
    save_every: Index = 0
    """Optimizer steps between checkpoints on disk; 0 saves at the end only."""
    keep: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    """Newest checkpoints that stay on disk."""
    eval_every: Index = 0
    """Optimizer steps between held-out losses; 0 is at the end only."""
    eval_tokens: Count = 65536
    """Tokens at most of one held-out loss."""


class DataSpec(Frozen):
    """Where the tokens come from. Relative paths start at the spec's folder."""

    path: Text
    """A text file, a folder of text files, or a folder of token shards with a manifest."""
    tokenizer: Text = "bytes"
    """`bytes` (built in: ids 0 … 255), or the path of a tokenizer.json."""
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Part of the tokens kept for the held-out loss: the last ones."""


class InferenceSpec(Frozen):
    """How the model is served."""

    context: Context
    """Tokens that the key-value cache must hold for each sequence."""
    batch: Count = 1
    """Sequences served at a time."""
    prefill_chunk: Context = 2048
    """Prompt tokens that one forward pass takes in."""


class TargetSpec(Frozen):
    """The card that the spec is made for."""

    gpu: Text
    """A card (`a100-80gb`), an architecture (`sm90`), or `cpu`; `--target` wins over it."""
    margin_gib: Annotated[float, Field(ge=0, le=1024)] = 2.0
    """GiB of the card to leave free."""


class KernelSpec(Frozen):
    """Launch configuration of the W1/W3 kernel, in place of the table's."""

    block_t: Annotated[int, Field(ge=1, le=1024)]
    """Rows (tokens) of a tile."""
    block_k: Annotated[int, Field(ge=1, le=1024)]
    """Step of the reduction over d_model."""
    block_n: Annotated[int, Field(ge=1, le=1024)]
    """Columns of a tile in each of gate and up."""
    num_warps: Annotated[int, Field(ge=1, le=32)]
    """Warps of a program."""
    num_stages: Annotated[int, Field(ge=1, le=16)]
    """Depth of the software pipeline."""


class Suppression(Frozen):
    """An advice that this spec accepts."""

    rule: RuleCode
    """Code of the rule."""
    reason: Text
    """Why it does not apply here."""


def _kernel_kind(value: object) -> str:
    return "auto" if isinstance(value, str) else "table"


Kernel = Annotated[
    Annotated[Literal["auto"], Tag("auto")] | Annotated[KernelSpec, Tag("table")],
    Discriminator(_kernel_kind),
]


class Spec(Frozen):
    """One sparse mixture-of-experts language model and how it is trained."""

    spec: Annotated[Literal[1], BeforeValidator(_whole)]
    """Version of this format."""
    name: Name
    """Names the build directory."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Seed of initialisation and data order."""
    model: ModelSpec
    """The architecture."""
    training: TrainingSpec | None = None
    """How it is trained; absent in a spec for inference only."""
    data: DataSpec | None = None
    """Training data."""
    inference: InferenceSpec | None = None
    """How it is served."""
    target: TargetSpec
    """The card."""
    kernel: Kernel = "auto"
    """`auto` takes the launch configuration from the table for the target."""
    suppress: Annotated[tuple[Suppression, ...], FromList] = ()
    """Advice that this spec accepts, each with a reason."""

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, the pattern repeated."""
        pattern = self.model.attention.pattern
        return tuple(pattern[layer % len(pattern)] for layer in range(self.model.layers))
