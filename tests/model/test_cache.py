from __future__ import annotations

import pytest
import torch

from gptoss_builder.errors import InputError
from gptoss_builder.model.cache import KVCache
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import CPU
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec
from tests.tolerances import assert_close

LENGTH = 21
SPLITS = {
    "one shot": [21],
    "token by token": [1] * 21,
    "prefill within the window, then decode": [3] + [1] * 18,
    "prefill past the window, then decode": [13] + [1] * 8,
    "chunks shorter and longer than the window": [4, 9, 2, 6],
    "all but one": [20, 1],
    "chunk after decode": [7, 1, 1, 5, 1, 6],
}


def through_cache(model, tokens: torch.Tensor, splits: list[int], context: int = 40):
    cache = KVCache(
        model.plan, batch=len(tokens), context=context, device="cpu", dtype=torch.float64
    )
    logits = []
    with torch.no_grad():
        for part in tokens.split(splits, dim=1):
            logits.append(model(part, cache=cache).logits_BTV)
    assert cache.position == tokens.shape[1]
    return torch.cat(logits, dim=1), cache


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("window", [1, 2, 5, 21, 22, 100])
def test_prefill_and_decode_give_the_logits_of_one_shot(split: str, window: int) -> None:
    model = randomized(tiny_plan(tiny_spec(attention={"window": window})))
    tokens = random_tokens(2, LENGTH)
    logits, _ = through_cache(model, tokens, SPLITS[split])
    assert_close(logits, model(tokens).logits_BTV)


def test_a_reset_cache_starts_anew() -> None:
    model = randomized(tiny_plan())
    first, second = random_tokens(2, 9), random_tokens(2, 14, seed=6)
    _, cache = through_cache(model, first, [9])
    cache.reset()
    with torch.no_grad():
        logits = [model(part, cache=cache).logits_BTV for part in second.split([6, 8], dim=1)]
    assert_close(torch.cat(logits, dim=1), model(second).logits_BTV)


def test_decode_sees_window_keys_and_no_more() -> None:
    """The same tokens behind the window give the same output, other ones inside do not."""
    spec = tiny_spec(layers=1, attention={"pattern": ["window"], "window": 3})
    model = randomized(tiny_plan(spec))
    tokens = random_tokens(1, 6)
    last = through_cache(model, tokens, [3, 1, 1, 1])[0][0, -1]
    for position in range(5):
        changed = tokens.clone()
        changed[0, position] = (changed[0, position] + 1) % 61
        moved = through_cache(model, changed, [3, 1, 1, 1])[0][0, -1]
        assert ((moved - last).abs().max() > 1e-9) == (position >= 3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [5, 100])
def test_bytes_are_the_plans(precision: str, window: int) -> None:
    spec = tiny_spec(attention={"window": window}, training={"precision": precision})
    plan = resolve(spec, CPU)
    cache = KVCache(plan, batch=1, context=spec.inference.context, device="meta")
    assert cache.bytes == plan.kv_cache.total_bytes


def test_bytes_of_half_rings_are_half_and_a_bit() -> None:
    """24 layers, 8 key heads of 64, window 128, 131,072 tokens in bf16: 3 GiB, not 6."""
    attention = {"heads": 8, "kv_heads": 8, "head_dim": 64, "window": 128}
    spec = tiny_spec(layers=24, attention=attention, training={"precision": "bf16"})
    cache = KVCache(resolve(spec, CPU), batch=1, context=131072, device="meta")
    token = 2 * 8 * 64 * 2
    assert cache.bytes == 12 * token * (131072 + 128)
    assert round(cache.bytes / 2**30, 1) == 3.0


def test_more_tokens_than_the_context_are_refused_and_change_nothing() -> None:
    model = randomized(tiny_plan())
    tokens = random_tokens(1, 9)
    _, cache = through_cache(model, tokens[:, :8], [8], context=8)
    with torch.no_grad(), pytest.raises(InputError, match="holds 8 tokens; 8 are there and 1 more"):
        model(tokens[:, 8:], cache=cache)
    assert cache.position == 8


def test_a_cache_with_gradients_on_is_refused() -> None:
    model = randomized(tiny_plan())
    cache = KVCache(model.plan, batch=1, context=8, device="cpu")
    with pytest.raises(InputError, match="no_grad"):
        model(random_tokens(1, 3), cache=cache)


def test_a_low_precision_cache_is_near() -> None:
    model = randomized(tiny_plan(tiny_spec(moe={"experts": 2})), dtype=torch.float32)
    tokens = random_tokens(1, LENGTH)
    cache = KVCache(model.plan, batch=1, context=40, device="cpu", dtype=torch.bfloat16)
    with torch.no_grad():
        parts = [model(part, cache=cache).logits_BTV for part in tokens.split([6, 1, 14], dim=1)]
        logits = model(tokens).logits_BTV
    error = (torch.cat(parts, dim=1) - logits).norm() / logits.norm()
    assert 1e-4 < error < 3e-2
