"""A legal spec in place of one with faults, so that the rules can judge what is legal.

Filler is never shown or built: whoever reads a field asks `Document.valid` first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gptoss_builder.findings import FieldPath
from gptoss_builder.spec.fields import fields, pattern_of

FILLER: dict[str, Any] = {
    "spec": 1,
    "name": "filler",
    "seed": 0,
    "model": {
        "vocab": 256,
        "d_model": 64,
        "layers": 2,
        "tie_embeddings": True,
        "norm_eps": 1e-5,
        "init_std": 0.02,
        "attention": {
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "pattern": ["full"],
            "window": None,
            "sinks": True,
            "backend": "auto",
            "rope": {
                "theta": 10000.0,
                "yarn": {
                    "factor": 2,
                    "original_context": 64,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "attention_factor": None,
                },
                "full_layers_rotary": 1.0,
            },
        },
        "moe": {
            "experts": 4,
            "top_k": 2,
            "shared_experts": 0,
            "d_ff": 64,
            "aux_loss": 0.01,
            "dispatch": "stacked",
            "backward": "recompute",
        },
    },
    "training": {
        "context": 64,
        "micro_batch": 1,
        "accumulate": 1,
        "steps": 100,
        "checkpoint_every": 0,
        "precision": "fp32",
        "optimizer": {
            "lr": 1e-3,
            "min_lr_ratio": 0.1,
            "warmup_steps": 0,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.1,
            "grad_clip": 1.0,
        },
        "loss_chunk": 64,
        "z_loss": 0.0,
        "compile": False,
        "nan_guard": {"enabled": True, "max_consecutive": 5, "consent": None},
        "save_every": 0,
        "keep": 2,
        "eval_every": 0,
        "eval_tokens": 64,
    },
    "data": {"path": "data", "tokenizer": "bytes", "holdout": 0.05},
    "inference": {"context": 64, "batch": 1, "prefill_chunk": 64},
    "target": {"gpu": "cpu", "margin_gib": 0},
    "kernel": {"block_t": 16, "block_k": 32, "block_n": 32, "num_warps": 4, "num_stages": 2},
    "suppress": [],
}
"""A legal value for every field, small enough to break no rule by itself."""


def fill(data: dict[str, Any], bad: Collection[FieldPath], strange: Collection[FieldPath]) -> Any:
    """Copy `data` with filler at the bad paths and without the strange (unknown) keys."""
    if () in bad:
        return _copy(FILLER)
    filled = _copy(data)
    for path in strange:
        del value_at(filled, path[:-1])[path[-1]]
    for path in sorted(bad, key=len):
        _put(filled, _outside_lists(path))
    return filled


def _copy(data: Any) -> Any:
    """Copy dicts and lists; a mapping from a caller may hold objects that must stay alone."""
    if isinstance(data, dict):
        return {key: _copy(value) for key, value in data.items()}
    return [_copy(value) for value in data] if isinstance(data, list) else data


def _outside_lists(path: FieldPath) -> FieldPath:
    """Cut a path at its first index: a list is filled whole."""
    for depth, part in enumerate(path):
        if isinstance(part, int):
            return path[:depth]
    return path


def _put(data: dict[str, Any], path: FieldPath) -> None:
    """Put filler at a path, and under the nearest parent that is no section already."""
    node, source = data, FILLER
    if pattern_of(path) not in fields() or not path:
        return
    for part in path[:-1]:
        name = str(part)
        if not isinstance(node.get(name), dict):
            node[name] = _copy(source[name])
            return
        node, source = node[name], source[name]
    node[str(path[-1])] = _copy(source[str(path[-1])])


def value_at(data: Any, path: FieldPath) -> Any:
    """Give the value at a path that exists."""
    for part in path:
        data = data[part]
    return data
