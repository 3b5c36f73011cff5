from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch

from gptoss_builder.model.transformer import Transformer
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec


def model_with(layers: int, every: int, **spec: object) -> Transformer:
    plan = tiny_plan(tiny_spec(layers=layers, training={"checkpoint_every": every}, **spec))
    return randomized(plan, dtype=torch.float32)


def gradients(model: Transformer, *, autocast: bool = False, aux: float = 1.0, ce: float = 1.0):
    model.zero_grad()
    context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with context:
        output = model(random_tokens(2, 11))
        loss = ce * output.logits_BTV.square().mean() + aux * output.aux_loss
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def runs_of_each_block(model: Transformer) -> Counter[int]:
    """Counts every start of a block's forward; a replay may stop before its end."""
    count: Counter[int] = Counter()
    for layer, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda _m, _i, layer=layer: count.update([layer]))
    return count


def recomputed(model: Transformer) -> list[int]:
    count = runs_of_each_block(model)
    gradients(model)
    assert set(count.values()) <= {1, 2}
    return [layer for layer in sorted(count) if count[layer] == 2]


@pytest.mark.parametrize(
    ("layers", "every", "expected"),
    [
        (6, 1, [0, 1, 2, 3, 4, 5]),
        (6, 2, [0, 2, 4]),
        (12, 3, [0, 3, 6, 9]),
        (7, 3, [0, 3, 6]),
        (7, 7, [0]),
        (7, 8, [0]),
        (7, 0, []),
    ],
)
def test_the_period_counts_layers_from_zero(layers: int, every: int, expected: list[int]) -> None:
    assert recomputed(model_with(layers, every)) == expected
    assert recomputed(model_with(layers, every)) == expected, "a second model counts anew"


def test_eval_mode_recomputes_too_and_no_grad_does_not() -> None:
    model = model_with(3, 1).eval()
    assert recomputed(model) == [0, 1, 2]
    count = runs_of_each_block(model)
    with torch.no_grad():
        model(random_tokens(1, 5))
    assert set(count.values()) == {1}


@pytest.mark.parametrize("autocast", [False, True])
def test_replay_gives_bit_equal_gradients(autocast: bool) -> None:
    plain = gradients(model_with(4, 0), autocast=autocast)
    for every in (1, 3):
        replayed = gradients(model_with(4, every), autocast=autocast)
        assert plain.keys() == replayed.keys()
        for name, grad in plain.items():
            assert torch.equal(replayed[name], grad), name


def test_auxiliary_gradient_reaches_a_checkpointed_router_in_proportion() -> None:
    model = model_with(2, 1)
    once, twice = (gradients(model, ce=0.0, aux=aux) for aux in (0.01, 0.02))
    for layer in range(2):
        name = f"blocks.{layer}.moe.router"
        assert once[name].abs().max() > 0
        assert torch.equal(2 * once[name], twice[name])


def test_a_frozen_embedding_leaves_the_first_blocks_gradients() -> None:
    model = model_with(2, 1)
    model.embedding.requires_grad_(False)
    grads = gradients(model)
    assert "embedding" not in grads
    assert all(f"blocks.0.{name}" in grads for name, _ in model.blocks[0].named_parameters())


@pytest.mark.parametrize("autocast", [False, True])
def test_ties_route_the_same_way_in_the_replay(autocast: bool) -> None:
    """Every token ties between all experts: the router is zero."""
    results = []
    for every in (0, 1):
        model = model_with(2, every)
        with torch.no_grad():
            for block in model.blocks:
                block.moe.router.zero_()
        results.append(gradients(model, autocast=autocast))
    for name, grad in results[0].items():
        assert torch.equal(results[1][name], grad), name


def test_a_block_changes_nothing_in_place() -> None:
    model = model_with(2, 0)
    block, x_BTD = model.blocks[1], torch.randn(2, 11, 24, requires_grad=True).clone()
    inputs: list[torch.Tensor] = []
    for module in block.modules():
        module.register_forward_pre_hook(
            lambda _m, args: inputs.extend(a for a in args if isinstance(a, torch.Tensor))
        )
    before = x_BTD.detach().clone()
    model.blocks[0].register_forward_pre_hook(lambda _m, args: (x_BTD, *args[1:]))
    model(random_tokens(2, 11))
    assert torch.equal(x_BTD, before)
    assert len(inputs) >= 4
    assert all(tensor._version == 0 for tensor in (*inputs, *block.buffers()))
