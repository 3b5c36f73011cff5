"""Initial parameters.

Matrices are normal(0, `init_std`); those that write into the residual stream (`wo`, `w2`,
`shared_w2`) are divided by √(2·layers), as GPT-2 does (Radford et al. 2019), so that the
stream's variance does not grow with depth. Norms are ones, sinks zeros.

Every parameter has a generator of its own, seeded from the spec's seed and its name, and is
drawn on the CPU: the values depend neither on the device nor on what else is there.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from gptoss_builder.spec.schema import Spec

_MATRICES = frozenset({"embedding", "head", "wqkv", "router", "w13", "shared_w13"})
_RESIDUAL = frozenset({"wo", "w2", "shared_w2"})


def initialize(model: nn.Module, spec: Spec) -> None:
    """Fill every parameter of a `Transformer`, in place; those on the meta device are skipped.

    Call it after `to_empty` on a model that was constructed on the meta device.

    Raises:
        KeyError: a parameter that has no rule here, so that none stays uninitialised.
    """
    std = spec.model.init_std
    residual_std = std / math.sqrt(2 * spec.model.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            role = name.rpartition(".")[2]
            if role == "weight":
                parameter.fill_(1.0)
            elif role == "sinks":
                parameter.zero_()
            elif role in _MATRICES:
                _draw(parameter, std, spec.seed, name)
            elif role in _RESIDUAL:
                _draw(parameter, residual_std, spec.seed, name)
            else:
                raise KeyError(f"no initialisation for parameter {name}")


def _draw(parameter: torch.Tensor, std: float, seed: int, name: str) -> None:
    if parameter.is_meta:
        return
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
    parameter.copy_(values.normal_(0.0, std, generator=generator))
