from __future__ import annotations

from collections import Counter

import pytest
import torch

from gptoss_builder.errors import InputError, RunError
from gptoss_builder.generate import Sampling, generate, sample, stream
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model():
    return randomized(tiny_plan(), dtype=torch.float32)


def without_cache(model, tokens: torch.Tensor, new: int) -> torch.Tensor:
    for _ in range(new):
        with torch.no_grad():
            best = model(tokens).logits_BTV[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, best], dim=1)
    return tokens


@pytest.mark.parametrize("prompt", [1, 6, 7, 8, 20])
def test_greedy_equals_the_argmax_without_a_cache(model, prompt: int) -> None:
    """The prefill chunk is 7, the window 5."""
    tokens = random_tokens(2, prompt)
    assert torch.equal(generate(model, tokens, 11, GREEDY), without_cache(model, tokens, 11))


def test_a_batch_equals_its_sequences_alone(model) -> None:
    tokens = random_tokens(3, 9)
    alone = [generate(model, row[None], 6, GREEDY) for row in tokens]
    assert torch.equal(generate(model, tokens, 6, GREEDY), torch.cat(alone))


def test_a_stream_yields_one_token_a_sequence_at_a_time(model) -> None:
    tokens = random_tokens(2, 4)
    steps = list(stream(model, tokens, 5, GREEDY))
    assert [step.shape for step in steps] == [(2,)] * 5
    assert torch.equal(torch.stack(steps, 1), generate(model, tokens, 5, GREEDY)[:, 4:])


def test_the_context_may_be_filled_and_not_passed(model) -> None:
    """The spec's inference context is 40."""
    tokens = random_tokens(1, 30)
    assert generate(model, tokens, 10, GREEDY).shape == (1, 40)
    with pytest.raises(InputError, match="pass the context of 40: ask for at most 10"):
        generate(model, tokens, 11, GREEDY)


def test_no_new_token_returns_the_prompt(model) -> None:
    tokens = random_tokens(2, 4)
    assert torch.equal(generate(model, tokens, 0), tokens)


@pytest.mark.parametrize(
    ("tokens", "new", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), 1, "prompt is empty"),
        (torch.zeros(0, 3, dtype=torch.int64), 1, "prompt is empty"),
        (torch.zeros(3, dtype=torch.int64), 1, r"integer ids \[batch, tokens\]"),
        (torch.zeros(1, 3), 1, r"integer ids \[batch, tokens\]"),
        (torch.zeros(1, 3, dtype=torch.int64), -1, "max_new_tokens is -1"),
        (torch.tensor([[0, 1], [2, 61]]), 1, "token 61 at position 1 of prompt 1"),
        (torch.tensor([[-1, 1]]), 1, "token -1 at position 0 of prompt 0"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(model, tokens, new, message) -> None:
    with pytest.raises(InputError, match=message):
        stream(model, tokens, new)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_sampling_settings_outside_their_range_are_refused(setting, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**setting)


def test_top_k_above_the_vocabulary_is_refused(model) -> None:
    with pytest.raises(InputError, match="top_k is 62, and the vocabulary has 61"):
        generate(model, random_tokens(1, 3), 1, Sampling(top_k=62))


def test_the_seed_decides(model) -> None:
    tokens = random_tokens(2, 4)
    first, again, other = (
        generate(model, tokens, 20, Sampling(temperature=3.0, seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_modes_gradients_and_parameters_are_as_before(model) -> None:
    model.train()
    model.blocks[1].eval()
    before = [module.training for module in model.modules()]
    for _ in stream(model, random_tokens(1, 3), 3):
        assert [module.training for module in model.modules()] == before
        assert torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == before


def test_a_bf16_plan_generates_in_bf16() -> None:
    plan = tiny_plan(tiny_spec(training={"precision": "bf16"}))
    model = randomized(plan, dtype=torch.float32)
    seen = set()
    model.norm.register_forward_hook(lambda _m, _i, out: seen.add(out.dtype))
    generate(model, random_tokens(1, 9), 3)
    assert seen == {torch.bfloat16}


def test_broken_weights_are_named() -> None:
    model = randomized(tiny_plan(), dtype=torch.float32)
    with torch.no_grad():
        model.norm.weight[3] = float("nan")
    for sampling in (GREEDY, Sampling()):
        with pytest.raises(RunError, match="logits are not finite"):
            generate(model, random_tokens(1, 3), 2, sampling)


def draws(logits: list[float], count: int = 4000, **setting) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    rows_BV = torch.tensor(logits).expand(count, -1)
    return Counter(sample(rows_BV, Sampling(**setting), generator).tolist())


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-40])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    assert draws([1.0, 5.0, 4.9], temperature=temperature) == {1: 4000}


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    for setting in ({}, {"top_k": 3}, {"top_p": 1.0}):
        count = draws(logits.tolist(), temperature=2.0, **setting)
        expected = (logits / 2.0).softmax(-1)
        for token in range(3):
            # Four standard errors of 4,000 draws are below 0.032.
            assert count[token] / 4000 == pytest.approx(expected[token].item(), abs=0.032)


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log().tolist()
    assert set(draws(logits, top_k=2)) == {1, 2}
    assert set(draws(logits, top_k=1)) == {1}
    assert set(draws(logits, top_p=0.6)) == {1, 2}
    assert set(draws(logits, top_p=0.75)) == {1, 2, 3}
    assert set(draws(logits, top_p=0.01)) == {1}
