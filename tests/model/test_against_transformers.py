"""The parts that coincide with architectures of Hugging Face transformers, weights copied over.

Theirs runs in fp64 except for its rotation tables, which are fp32: hence the fp32 tolerance.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from gptoss_builder.model.transformer import Transformer
from tests.model.plans import YARN, random_tokens, randomized, tiny_plan, tiny_spec
from tests.tolerances import assert_close

transformers = pytest.importorskip("transformers", reason="needs the extra `reference`")

COMMON = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
    "rms_norm_eps": 1e-5,
}


def their_tensors(theirs, layers: int) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Our parameter names, with their parameters; a list is stacked by rows."""
    named = dict(theirs.named_parameters())
    tensors = {
        "embedding": named["model.embed_tokens.weight"],
        "norm.weight": named["model.norm.weight"],
    }
    if "lm_head.weight" in named:
        tensors["head"] = named["lm_head.weight"]
    for layer in range(layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        rows = {
            "attention_norm.weight": ["input_layernorm.weight"],
            "attention.wqkv": [f"self_attn.{part}_proj.weight" for part in "qkv"],
            "attention.wo": ["self_attn.o_proj.weight"],
            "attention.sinks": ["self_attn.sinks"],
            "moe_norm.weight": ["post_attention_layernorm.weight"],
            "moe.router": ["mlp.gate.weight"],
            "moe.w13": ["mlp.experts.gate_up_proj"],
            "moe.w2": ["mlp.experts.down_proj"],
            "moe.shared_w13": [f"mlp.shared_expert.{part}_proj.weight" for part in ("gate", "up")],
            "moe.shared_w2": ["mlp.shared_expert.down_proj.weight"],
        }
        for ours, parts in rows.items():
            if all(there + part in named for part in parts):
                tensors[here + ours] = [named[there + part] for part in parts]
    return tensors


def stacked(value: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(value) if isinstance(value, list) else value


def randomize(theirs) -> None:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(noise * 0.3 + (1.0 if "norm" in name else 0.0))


def copied(ours: Transformer, theirs) -> Transformer:
    with torch.no_grad():
        for name, value in their_tensors(theirs, len(ours.blocks)).items():
            ours.get_parameter(name).copy_(stacked(value))
    return ours


def compare_gradients(ours: Transformer, theirs, leave_out: tuple[str, ...] = ()) -> None:
    for name, value in their_tensors(theirs, len(ours.blocks)).items():
        if not name.endswith(leave_out):
            grads = [part.grad for part in value] if isinstance(value, list) else value.grad
            assert_close(ours.get_parameter(name).grad, stacked(grads), torch.float32, name=name)


def test_attention_with_sinks_windows_and_yarn_is_gpt_oss() -> None:
    spec = tiny_spec(
        layers=4,
        attention={"rope": {"theta": 100.0, "yarn": YARN}, "window": 5},
        moe={"shared_experts": 0, "experts": 3},
    )
    config = transformers.GptOssConfig(
        **COMMON,
        num_hidden_layers=4,
        intermediate_size=20,
        num_local_experts=3,
        sliding_window=5,
        attention_bias=False,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": YARN["factor"],
            "original_max_position_embeddings": YARN["original_context"],
            "beta_fast": YARN["beta_fast"],
            "beta_slow": YARN["beta_slow"],
            "truncate": False,
        },
    )
    theirs = transformers.GptOssForCausalLM(config).double()
    randomize(theirs)
    # Its experts are clamped and biased, ours are not: silence both.
    for name, parameter in theirs.named_parameters():
        if "mlp.experts" in name:
            parameter.data.zero_()
    ours = randomized(tiny_plan(spec))
    for block in ours.blocks:
        block.moe.w2.data.zero_()
    named = their_tensors(theirs, 4)
    with torch.no_grad():
        for name, value in named.items():
            if ".moe." not in name:
                ours.get_parameter(name).copy_(stacked(value))
    tokens = random_tokens(2, 23)
    logits, weight = theirs(tokens).logits, torch.randn(2, 23, 61, dtype=torch.float64)
    output = ours(tokens)
    assert_close(output.logits_BTV, logits, torch.float32)
    (logits * weight).sum().backward()
    (output.logits_BTV * weight).sum().backward()
    compare_gradients(ours, theirs, leave_out=("router", "w13", "w2", "moe_norm.weight"))


def test_mixture_and_its_loss_are_mixtral() -> None:
    spec = tiny_spec(
        layers=1,
        tie_embeddings=False,
        attention={"pattern": ["full"], "sinks": False, "rope": {"theta": 1e4}},
        moe={"shared_experts": 0, "experts": 5},
    )
    config = transformers.MixtralConfig(
        **COMMON,
        num_hidden_layers=1,
        intermediate_size=20,
        num_local_experts=5,
        output_router_logits=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    theirs = transformers.MixtralForCausalLM(config).double()
    randomize(theirs)
    ours = copied(randomized(tiny_plan(spec)), theirs)
    tokens = random_tokens(2, 23)
    result, output = theirs(tokens), ours(tokens)
    assert_close(output.logits_BTV, result.logits, torch.float32)
    # Theirs is not divided by the choices of a token.
    assert_close(output.aux_loss, result.aux_loss / 2, torch.float32)
    weight = torch.randn(2, 23, 61, dtype=torch.float64)
    ((result.logits * weight).sum() + 3 * result.aux_loss / 2).backward()
    ((output.logits_BTV * weight).sum() + 3 * output.aux_loss).backward()
    compare_gradients(ours, theirs)


def test_shared_expert_is_qwen2_moe_with_its_gate_half_open() -> None:
    spec = tiny_spec(
        layers=2,
        tie_embeddings=False,
        attention={"pattern": ["full"], "head_dim": 6, "sinks": False, "rope": {"theta": 1e4}},
        moe={"experts": 5},
    )
    common = {key: value for key, value in COMMON.items() if key != "head_dim"}
    config = transformers.Qwen2MoeConfig(
        **common,
        num_hidden_layers=2,
        intermediate_size=20,
        num_experts=5,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=20,
        norm_topk_prob=True,
        qkv_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.Qwen2MoeForCausalLM(config).double()
    randomize(theirs)
    for layer in theirs.model.layers:
        layer.mlp.shared_expert_gate.weight.data.zero_()  # sigmoid(0) = 1/2
    ours = copied(randomized(tiny_plan(spec)), theirs)
    for block in ours.blocks:
        block.moe.shared_w2.data.mul_(0.5)
    tokens = random_tokens(2, 23)
    logits, weight = theirs(tokens).logits, torch.randn(2, 23, 61, dtype=torch.float64)
    output = ours(tokens)
    assert_close(output.logits_BTV, logits, torch.float32)
    (logits * weight).sum().backward()
    (output.logits_BTV * weight).sum().backward()
    compare_gradients(ours, theirs, leave_out=("shared_w2",))
