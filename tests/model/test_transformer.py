from __future__ import annotations

from typing import Any

import pytest
import torch

from gptoss_builder.errors import InputError
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec
from tests.model.reference import reference
from tests.tolerances import assert_close, relative_error

FEATURES: dict[str, dict[str, Any]] = {
    "everything": {},
    "untied": {"tie_embeddings": False},
    "no sinks, no yarn, all rotary": {
        "attention": {"sinks": False, "rope": {"theta": 100.0}},
    },
    "one key head, two shared experts": {
        "attention": {"kv_heads": 1},
        "moe": {"shared_experts": 2, "experts": 3, "top_k": 3},
    },
    "full only, no shared expert": {
        "attention": {"pattern": ["full"], "kv_heads": 4},
        "moe": {"shared_experts": 0, "top_k": 1},
    },
}


@pytest.mark.parametrize("feature", FEATURES)
def test_logits_loss_and_every_gradient_equal_the_plain_reference(feature: str) -> None:
    spec = tiny_spec(**FEATURES[feature])
    model = randomized(tiny_plan(spec))
    tokens = random_tokens(2, 13)
    weight = torch.randn(2, 13, spec.model.vocab, dtype=torch.float64)

    output = model(tokens)
    ((output.logits_BTV * weight).sum() + 7.0 * output.aux_loss).backward()

    plain = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    logits, aux = reference(plain, spec, tokens)
    ((logits * weight).sum() + 7.0 * aux).backward()

    assert_close(output.logits_BTV, logits, name="logits")
    assert_close(output.aux_loss, aux, name="aux")
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, plain[name].grad, name=f"gradient of {name}")


def test_hidden_and_head_weight_give_the_logits() -> None:
    model = randomized(tiny_plan(tiny_spec(tie_embeddings=False)))
    tokens = random_tokens(1, 9)
    x_BTD, _ = model.hidden(tokens)
    assert model.head_weight is model.head
    assert_close(x_BTD @ model.head_weight.T, model(tokens).logits_BTV)


def test_tied_head_is_the_embedding_and_has_no_parameter_of_its_own() -> None:
    model = randomized(tiny_plan())
    assert model.head_weight is model.embedding
    assert "head" not in dict(model.named_parameters())


def test_parameter_count_is_the_plans() -> None:
    for feature in FEATURES.values():
        plan = tiny_plan(tiny_spec(**feature))
        built = sum(parameter.numel() for parameter in randomized(plan).parameters())
        assert built == plan.parameters.total


@pytest.mark.parametrize("length", [0, 1, 2, 33])
def test_any_length_works_and_no_token_sees_a_later_one(length: int) -> None:
    model = randomized(tiny_plan(), dtype=torch.float32)
    tokens = random_tokens(2, length)
    logits = model(tokens).logits_BTV
    assert logits.shape == (2, length, 61)
    if length > 1:
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 61
        assert_close(model(changed).logits_BTV[:, :-1], logits[:, :-1])


@pytest.mark.parametrize("shape", [(5,), (1, 2, 3)])
def test_tokens_of_another_rank_are_refused(shape: tuple[int, ...]) -> None:
    model = randomized(tiny_plan())
    with pytest.raises(InputError, match=r"tokens must be \[batch, tokens\]"):
        model(torch.zeros(shape, dtype=torch.int64))


def test_window_layers_are_where_the_pattern_says() -> None:
    """Token 0 reaches the last position through full layers only, or by hops of window − 1."""
    length, window = 14, 3
    for pattern, reaches in ((["window"], False), (["window", "full"], True), (["full"], True)):
        spec = tiny_spec(attention={"pattern": pattern, "window": window})
        model = randomized(tiny_plan(spec))
        tokens = random_tokens(1, length)
        outputs: list[torch.Tensor] = []
        for block in model.blocks:
            block.register_forward_hook(lambda _m, _i, out, seen=outputs: seen.append(out[0]))
        model(tokens)
        changed = tokens.clone()
        changed[0, 0] = (changed[0, 0] + 1) % 61
        model(changed)
        layers = len(model.blocks)
        first_moved = [
            bool((before[0, -1] - after[0, -1]).abs().max() > 1e-9)
            for before, after in zip(outputs[:layers], outputs[layers:], strict=True)
        ]
        expected = [reaches and "full" in (pattern * 3)[: n + 1] for n in range(layers)]
        assert first_moved == expected


def test_stream_has_the_autocast_dtype_and_equals_the_run_on_cast_matrices() -> None:
    model = randomized(tiny_plan(), dtype=torch.float32)
    tokens = random_tokens(2, 11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x_BTD, aux = model.hidden(tokens)
        logits = model(tokens).logits_BTV
    assert x_BTD.dtype == torch.bfloat16
    assert (aux.dtype, logits.dtype) == (torch.float32, torch.float32)

    for name, parameter in model.named_parameters():
        if name.endswith(("wqkv", "wo", "w13", "w2", "shared_w13", "shared_w2")):
            parameter.data = parameter.data.bfloat16()
    cast_x_BTD, cast_aux = model.hidden(tokens)
    assert torch.equal(cast_x_BTD, x_BTD)
    assert torch.equal(cast_aux, aux)


def test_gradients_have_the_dtype_of_their_parameters_under_autocast() -> None:
    model = randomized(tiny_plan(), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(random_tokens(2, 11))
        loss = output.logits_BTV.square().mean() + output.aux_loss
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


def test_bf16_stream_is_near_the_fp64_model() -> None:
    spec = tiny_spec(moe={"experts": 2, "top_k": 2})  # no expert to choose: nothing can flip
    exact = randomized(tiny_plan(spec))
    tokens = random_tokens(2, 11)
    model = randomized(tiny_plan(spec), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens).logits_BTV
    # Three layers of bf16 roundings, each within the table's bound.
    assert 0 < relative_error(logits, exact(tokens).logits_BTV) < 3e-2
