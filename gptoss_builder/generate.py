"""Sampling text, token by token, from a model and its key-value cache.

Legend: B sequences, T prompt tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gptoss_builder.errors import InputError, RunError
from gptoss_builder.model.cache import KVCache
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.spec.schema import Spec

_PREFILL_CHUNK = 2048
_COLDEST = 1e-30  # greedy already; a smaller divisor would overflow fp32, and NaN follows


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Raises:
        InputError: a value outside its range.
    """

    temperature: float = 1.0
    """Divides the logits; 0 takes the largest one."""
    top_k: int | None = None
    """Draw among the k likeliest tokens; None is all."""
    top_p: float | None = None
    """Draw among the fewest likeliest tokens whose probabilities reach p; None is all."""
    seed: int = 0
    """The same seed, model and device draw the same tokens."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or above")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}; it must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed is {self.seed}; it must be from 0 to 2^64 - 1")


def generate(
    model: Transformer, tokens_BT: Tensor, max_new_tokens: int, sampling: Sampling | None = None
) -> Tensor:
    """Continue every sequence of a batch; arguments and errors as for `stream`.

    Returns:
        Prompt and new tokens, [B, T + max_new_tokens].
    """
    new = list(stream(model, tokens_BT, max_new_tokens, sampling))
    return torch.cat([tokens_BT, *(token_B[:, None] for token_B in new)], dim=1)


def stream(
    model: Transformer, tokens_BT: Tensor, max_new_tokens: int, sampling: Sampling | None = None
) -> Iterator[Tensor]:
    """Yield each new token, [B], as soon as it is drawn.

    The prompt is taken in by chunks of `inference.prefill_chunk`. The products have the plan's
    precision. Modules are back in their own training or eval mode whenever a token is yielded.

    Args:
        model: A built model; its device is where everything happens.
        tokens_BT: Prompts of one length, T ≥ 1. Prompts of different lengths go in different
            calls: the cache has one position for a batch.
        max_new_tokens: How many to draw; 0 is none.
        sampling: How; by default at temperature 1 among all tokens.

    Raises:
        InputError: an empty or malformed prompt, a token outside the vocabulary, a `top_k`
            above the vocabulary, or more tokens than the spec's context.
        RunError: logits that are not finite, while iterating.
    """
    sampling = sampling or Sampling()
    _require(model.plan.spec, tokens_BT, max_new_tokens, sampling)
    return _stream(model, tokens_BT, max_new_tokens, sampling)


def context_limit(spec: Spec) -> int:
    """Tokens that prompt and continuation may have together."""
    if spec.inference is not None:
        return spec.inference.context
    if spec.training is not None:
        return spec.training.context
    raise InputError("the spec has neither inference nor training: set inference.context")


def sample(logits_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Draw one token id a row, [B] int64.

    Raises:
        RunError: a row without a finite maximum.
    """
    largest_B1 = logits_BV.amax(-1, keepdim=True)
    if not bool(largest_B1.isfinite().all()):
        raise RunError("the model's logits are not finite; the weights or the prompt are broken")
    if sampling.temperature == 0:
        return logits_BV.argmax(-1)
    scaled_BV = logits_BV / max(sampling.temperature, _COLDEST)
    if sampling.top_k is None and sampling.top_p is None:
        return torch.multinomial(scaled_BV.softmax(-1), 1, generator=generator)[:, 0]
    top_BK, id_BK = scaled_BV.topk(sampling.top_k or scaled_BV.shape[-1], dim=-1)
    chance_BK = top_BK.softmax(-1)
    if sampling.top_p is not None:
        before_BK = chance_BK.cumsum(-1) - chance_BK
        chance_BK = chance_BK.masked_fill(before_BK >= sampling.top_p, 0.0)
    return id_BK.gather(1, torch.multinomial(chance_BK, 1, generator=generator))[:, 0]


def _stream(
    model: Transformer, tokens_BT: Tensor, max_new_tokens: int, sampling: Sampling
) -> Iterator[Tensor]:
    if max_new_tokens == 0:
        return
    device = model.embedding.device
    batch, prompt = tokens_BT.shape
    inference = model.plan.spec.inference
    chunk = inference.prefill_chunk if inference is not None else _PREFILL_CHUNK
    generator = torch.Generator(device).manual_seed(sampling.seed)
    with _serving(model):
        dtype = model.compute_dtype(device.type)
    # The last new token is never fed back.
    cache = KVCache(
        model.plan, batch=batch, context=prompt + max_new_tokens - 1, device=device, dtype=dtype
    )
    tokens_BT = tokens_BT.to(device)
    for start in range(0, prompt, chunk):
        logits_BV = _next_logits(model, tokens_BT[:, start : start + chunk], cache)
    for count in range(1, max_new_tokens + 1):
        token_B = sample(logits_BV, sampling, generator)
        yield token_B
        if count < max_new_tokens:
            logits_BV = _next_logits(model, token_B[:, None], cache)


def _next_logits(model: Transformer, tokens_BT: Tensor, cache: KVCache) -> Tensor:
    with _serving(model):
        x_BTD, _ = model.hidden(tokens_BT, cache=cache)
        return model.logits(x_BTD[:, -1])


@contextmanager
def _serving(model: Transformer) -> Iterator[None]:
    """No gradients, eval mode, the plan's precision; never held across a yield."""
    device_type = model.embedding.device.type
    wide = model.compute_dtype(device_type) == torch.float32
    autocast = wide and model.plan.execution.precision == "bf16"
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        precision = torch.autocast(device_type, torch.bfloat16) if autocast else nullcontext()
        with torch.no_grad(), precision:
            yield
    finally:
        for module, training in modes:
            module.training = training


def _require(spec: Spec, tokens_BT: Tensor, max_new_tokens: int, sampling: Sampling) -> None:
    vocab, limit = spec.model.vocab, context_limit(spec)
    if tokens_BT.ndim != 2 or tokens_BT.is_floating_point():
        raise InputError(
            f"prompts must be integer ids [batch, tokens], not {list(tokens_BT.shape)} of "
            f"{tokens_BT.dtype}"
        )
    if 0 in tokens_BT.shape:
        raise InputError("the prompt is empty; give at least one token")
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens is {max_new_tokens}; it must be 0 or more")
    if tokens_BT.shape[1] + max_new_tokens > limit:
        raise InputError(
            f"a prompt of {tokens_BT.shape[1]} tokens and {max_new_tokens} new ones pass the "
            f"context of {limit}: ask for at most {max(limit - tokens_BT.shape[1], 0)}, or raise "
            "inference.context"
        )
    if sampling.top_k is not None and sampling.top_k > vocab:
        raise InputError(f"top_k is {sampling.top_k}, and the vocabulary has {vocab} tokens")
    outside_BT = (tokens_BT < 0) | (tokens_BT >= vocab)
    if bool(outside_BT.any()):
        row, column = outside_BT.nonzero()[0].tolist()
        raise InputError(
            f"token {int(tokens_BT[row, column])} at position {column} of prompt {row} is not in "
            f"the vocabulary, 0 … {vocab - 1}"
        )
