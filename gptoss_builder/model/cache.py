"""Key-value cache: rings of `window` entries for window layers, the whole context for full ones.

Legend: B sequences, T new tokens, C capacity, S keys handed to attention, K key/value heads,
d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gptoss_builder.errors import InputError
from gptoss_builder.plan.schema import Plan

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class LayerCache:
    """Keys and values of one layer; `window` is None for a full layer."""

    def __init__(
        self,
        shape_BCKd: tuple[int, int, int, int],
        window: int | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.k_BCKd = torch.zeros(shape_BCKd, device=device, dtype=dtype)
        self.v_BCKd = torch.zeros(shape_BCKd, device=device, dtype=dtype)
        self.window = window
        self.position = 0

    def extend(self, k_BTKd: Tensor, v_BTKd: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all that the new queries may see, [B, S, K, d].

        The last key is the last new token's. In a ring that takes one token the order of the
        others is free: they are rotated already and that token sees them all.
        """
        if self.window is None:
            stop = self.position + k_BTKd.shape[1]
            self.k_BCKd[:, self.position : stop] = k_BTKd
            self.v_BCKd[:, self.position : stop] = v_BTKd
            return self.k_BCKd[:, :stop], self.v_BCKd[:, :stop]
        if k_BTKd.shape[1] == 1:
            self._store(k_BTKd, v_BTKd)
            filled = min(self.position + 1, self.k_BCKd.shape[1])
            return self.k_BCKd[:, :filled], self.v_BCKd[:, :filled]
        kept = min(self.position, self.window - 1)
        slot_S = self._slots(self.position - kept, self.position)
        k_BSKd = torch.cat([self.k_BCKd[:, slot_S], k_BTKd.to(self.k_BCKd.dtype)], dim=1)
        v_BSKd = torch.cat([self.v_BCKd[:, slot_S], v_BTKd.to(self.v_BCKd.dtype)], dim=1)
        self._store(k_BTKd, v_BTKd)
        return k_BSKd, v_BSKd

    def _store(self, k_BTKd: Tensor, v_BTKd: Tensor) -> None:
        new = k_BTKd.shape[1]
        last = min(new, self.k_BCKd.shape[1])
        slot_T = self._slots(self.position + new - last, self.position + new)
        self.k_BCKd[:, slot_T] = k_BTKd[:, new - last :].to(self.k_BCKd.dtype)
        self.v_BCKd[:, slot_T] = v_BTKd[:, new - last :].to(self.v_BCKd.dtype)

    def _slots(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.k_BCKd.device) % self.k_BCKd.shape[1]


class KVCache:
    """Keys and values of `batch` sequences of one length, up to `context` tokens.

    The tokens seen so far are `position`; `bytes` is what the cache occupies. The type of the
    entries is the plan's precision unless `dtype` says otherwise.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        batch: int,
        context: int,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
    ) -> None:
        attention = plan.spec.model.attention
        self.context = context
        self.position = 0
        self.layers: list[LayerCache] = []
        for kind in plan.spec.layer_kinds():
            window = attention.window if kind == "window" else None
            capacity = context if window is None else min(window, context)
            self.layers.append(
                LayerCache(
                    (batch, capacity, attention.kv_heads, attention.head_dim),
                    window,
                    torch.device(device),
                    dtype or _DTYPES[plan.execution.precision],
                )
            )

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.k_BCKd.nbytes + layer.v_BCKd.nbytes for layer in self.layers)

    def require(self, tokens: int) -> None:
        """Check that `tokens` more fit.

        Raises:
            InputError: they do not, or gradients are on: a cache is written in place.
        """
        if torch.is_grad_enabled():
            raise InputError("a key-value cache is for inference: call under torch.no_grad()")
        if self.position + tokens > self.context:
            raise InputError(
                f"the cache holds {self.context} tokens; {self.position} are there and "
                f"{tokens} more do not fit: raise inference.context or ask for fewer"
            )

    def advance(self, tokens: int) -> None:
        """Count `tokens` that every layer has stored."""
        self.position += tokens
        for layer in self.layers:
            layer.position = self.position

    def reset(self) -> None:
        """Forget everything; the memory stays."""
        self.advance(-self.position)
