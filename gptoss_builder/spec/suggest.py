"""What an unknown key was meant to be: a misspelling, another project's name, another section."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from gptoss_builder.findings import FieldPath
from gptoss_builder.spec.fields import ITEM, fields, pattern_of

_ELSEWHERE = {
    "learning_rate": "training.optimizer.lr",
    "max_lr": "training.optimizer.lr",
    "beta": "training.optimizer.betas",
    "adam_betas": "training.optimizer.betas",
    "epsilon": "training.optimizer.eps",
    "adam_eps": "training.optimizer.eps",
    "wd": "training.optimizer.weight_decay",
    "clip": "training.optimizer.grad_clip",
    "max_grad_norm": "training.optimizer.grad_clip",
    "warmup": "training.optimizer.warmup_steps",
    "min_lr": "training.optimizer.min_lr_ratio",
    "seq_len": "training.context",
    "seq_length": "training.context",
    "max_seq_len": "training.context",
    "sequence_length": "training.context",
    "block_size": "training.context",
    "batch_size": "training.micro_batch",
    "micro_batch_size": "training.micro_batch",
    "grad_accum": "training.accumulate",
    "gradient_accumulation_steps": "training.accumulate",
    "max_steps": "training.steps",
    "num_steps": "training.steps",
    "total_steps": "training.steps",
    "dtype": "training.precision",
    "gradient_checkpointing": "training.checkpoint_every",
    "vocab_size": "model.vocab",
    "hidden_size": "model.d_model",
    "dim": "model.d_model",
    "n_embd": "model.d_model",
    "n_layer": "model.layers",
    "n_layers": "model.layers",
    "num_layers": "model.layers",
    "num_hidden_layers": "model.layers",
    "tie_word_embeddings": "model.tie_embeddings",
    "rms_norm_eps": "model.norm_eps",
    "initializer_range": "model.init_std",
    "n_head": "model.attention.heads",
    "n_heads": "model.attention.heads",
    "num_heads": "model.attention.heads",
    "num_attention_heads": "model.attention.heads",
    "n_kv_heads": "model.attention.kv_heads",
    "num_key_value_heads": "model.attention.kv_heads",
    "sliding_window": "model.attention.window",
    "layer_types": "model.attention.pattern",
    "rope_theta": "model.attention.rope.theta",
    "rope_scaling": "model.attention.rope.yarn",
    "n_experts": "model.moe.experts",
    "num_experts": "model.moe.experts",
    "num_local_experts": "model.moe.experts",
    "experts_per_token": "model.moe.top_k",
    "num_experts_per_tok": "model.moe.top_k",
    "intermediate_size": "model.moe.d_ff",
    "moe_intermediate_size": "model.moe.d_ff",
    "ffn_dim": "model.moe.d_ff",
    "router_aux_loss_coef": "model.moe.aux_loss",
    "device": "target.gpu",
}
"""Names in other projects' configurations, and the field that comes nearest here."""


class Suggestion(NamedTuple):
    """Fields that an unknown key may have been meant to be, the likeliest first."""

    patterns: tuple[tuple[str, ...], ...]
    sure: bool
    """Whether there is one field only, so near that a tool may rename the key."""


def suggest(path: FieldPath) -> Suggestion | None:
    """Suggest what the unknown key at the end of a path stands for, if anything is near."""
    section, key = pattern_of(path[:-1]), _snake(str(path[-1]))
    siblings = fields()[section].names
    if key in siblings:
        return Suggestion(((*section, key),), sure=True)
    elsewhere = [pattern for pattern in fields() if pattern and pattern[-1] == key]
    if key in _ELSEWHERE:
        elsewhere.insert(0, tuple(_ELSEWHERE[key].split(".")))
    if elsewhere:
        here = [pattern for pattern in elsewhere if pattern[:-1] == section]
        return Suggestion(tuple(here or elsewhere), sure=False)
    near = difflib.get_close_matches(key, siblings, n=2, cutoff=0.6)
    if near:
        ratio = difflib.SequenceMatcher(None, key, near[0]).ratio()
        return Suggestion(((*section, near[0]),), sure=len(near) == 1 and ratio >= 0.75)
    names = {pattern[-1]: pattern for pattern in fields() if pattern and pattern[-1] != ITEM}
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.8)
    return Suggestion((names[near[0]],), sure=False) if near else None


def near_choice(value: str, choices: tuple[object, ...]) -> str | None:
    """Give the choice that a word is near to, if any."""
    words = [str(choice) for choice in choices]
    near = difflib.get_close_matches(value.lower().replace("-", "_")[:100], words, n=1)
    return near[0] if near else None


def is_slip(value: str, near: str, choices: tuple[object, ...]) -> bool:
    """Say whether a word is so near to one choice, and to no other, that a tool may write it."""
    words = [str(choice) for choice in choices]
    others = difflib.get_close_matches(value[:100], words, n=2)
    return others == [near] and difflib.SequenceMatcher(None, value, near).ratio() >= 0.8


def _snake(key: str) -> str:
    """Write a key as this schema does: `topK`, `Top-K` and `top k` are `top_k`."""
    key = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key[:100])
    return re.sub(r"[\s-]+", "_", key.strip()).lower()
