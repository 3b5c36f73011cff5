from __future__ import annotations

import pytest
import torch

from gptoss_builder.errors import DeviceError
from gptoss_builder.model.build import build
from gptoss_builder.model.init import initialize
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import CARDS
from tests.model.plans import random_tokens, tiny_plan, tiny_spec


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    first, second = build(tiny_plan()), build(tiny_plan())
    other = build(tiny_plan(tiny_spec().model_copy(update={"seed": 4})))
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name
        if parameter.ndim > 1:
            assert not torch.equal(parameter, other.get_parameter(name)), name


def test_a_parameter_does_not_depend_on_what_else_is_there() -> None:
    deep = build(tiny_plan(tiny_spec(layers=3, tie_embeddings=False)))
    shallow = build(tiny_plan(tiny_spec(layers=1)))
    assert torch.equal(deep.embedding, shallow.embedding)
    wqkv = [model.blocks[0].attention.wqkv for model in (deep, shallow)]
    assert torch.equal(*wqkv)
    assert not torch.equal(deep.blocks[0].attention.wqkv, deep.blocks[2].attention.wqkv)


def test_scales_are_the_documented_ones() -> None:
    spec = tiny_spec(
        d_model=128, layers=2, init_std=0.05, vocab=1000, moe={"d_ff": 96}, tie_embeddings=False
    )
    model = build(tiny_plan(spec))
    residual = 0.05 / (2 * 2) ** 0.5
    for name, parameter in model.named_parameters():
        role = name.rpartition(".")[2]
        assert parameter.dtype == torch.float32
        if role == "weight":
            assert (parameter == 1).all()
        elif role == "sinks":
            assert (parameter == 0).all()
        else:
            std = residual if role in ("wo", "w2", "shared_w2") else 0.05
            # Four standard errors of an estimate from this many draws.
            slack = 4 * std / (2 * parameter.numel()) ** 0.5
            assert parameter.std().item() == pytest.approx(std, abs=slack), name
            assert abs(parameter.mean().item()) < 4 * std / parameter.numel() ** 0.5, name


@pytest.mark.usefixtures("poisoned_memory")
def test_everything_is_finite_after_meta_and_to_empty() -> None:
    plan = tiny_plan()
    direct = build(plan)
    late = build(plan, device="meta")
    assert all(tensor.is_meta for tensor in (*late.parameters(), *late.buffers()))
    late.to_empty(device="cpu")
    initialize(late, plan.spec)
    for name, tensor in [*late.named_parameters(), *late.named_buffers()]:
        assert tensor.isfinite().all(), name
        assert torch.equal(tensor, direct.get_parameter(name)), name
    tokens = random_tokens(2, 33)
    assert torch.equal(late(tokens).logits_BTV, direct(tokens).logits_BTV)


def test_a_parameter_without_a_rule_is_an_error() -> None:
    model = Transformer(tiny_plan())
    model.extra = torch.nn.Parameter(torch.empty(3))
    with pytest.raises(KeyError, match="no initialisation for parameter extra"):
        initialize(model, model.plan.spec)


def test_a_build_for_a_gpu_refuses_the_cpu() -> None:
    plan = resolve(tiny_spec(), CARDS["a100-80gb"])
    with pytest.raises(DeviceError, match=r"this plan is for a100-80gb \(sm80\), not for cpu"):
        build(plan, device="cpu")
    assert build(plan, device="meta").embedding.is_meta


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_build_for_a_gpu_says_so_where_there_is_none() -> None:
    plan = resolve(tiny_spec(), CARDS["a100-80gb"])
    with pytest.raises(DeviceError, match="no GPU is available"):
        build(plan)
