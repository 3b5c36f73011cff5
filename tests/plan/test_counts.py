import math
from pathlib import Path

import pytest
from hypothesis import given, settings

pytest.importorskip("torch")

from gptoss_builder.model.build import build
from gptoss_builder.plan.counts import (
    attended_pairs,
    count_flops,
    count_kv_cache,
    count_parameters,
)
from gptoss_builder.plan.resolve import decide, resolve
from gptoss_builder.spec.load import load_spec
from gptoss_builder.targets import CPU, lookup
from tests.plan.specs import lite, small_specs


def flops(target="h200", **changes):
    spec = lite(**changes)
    return count_flops(spec, decide(spec, lookup(target)))


def test_the_502m_model_counts_exactly():
    counts = count_parameters(lite().model)
    assert counts.total == 501_836_640
    assert counts.active == 247_032_672


def test_components_add_up_and_an_untied_head_counts_once():
    tied = count_parameters(lite().model)
    untied = count_parameters(lite(model__tie_embeddings=False).model)
    assert (tied.head, untied.head) == (0, 128_000 * 768)
    assert untied.total - tied.total == untied.head
    parts = untied.model_dump(exclude={"total", "active"})
    assert sum(parts.values()) == untied.total


@pytest.mark.parametrize("experts", [1, 8, 64])
def test_parameters_equal_the_shapes_written_out(experts):
    top_k = min(2, experts)
    model = lite(model__moe__experts=experts, model__moe__top_k=top_k).model
    shapes = [(128_000, 768), (768,)]  # embedding, final norm
    for _ in range(12):
        shapes += [(768,), (768,), (8,)]  # norms, sinks
        shapes += [(768, 768), (384, 768), (384, 768), (768, 768)]  # q, k, v, output
        shapes += [(experts, 768), (experts, 2 * 1536, 768), (experts, 768, 1536)]
        shapes += [(2 * 1536, 768), (768, 1536)]
    total = sum(math.prod(shape) for shape in shapes)
    counts = count_parameters(model)
    assert counts.total == total
    assert counts.active == total - 12 * (experts - top_k) * 3 * 768 * 1536


@pytest.mark.parametrize(("context", "window"), [(1, None), (7, 3), (65, 64), (64, 65), (63, 1)])
def test_pairs_equal_a_count_of_the_mask(context, window):
    seen = sum(
        1
        for query in range(context)
        for key in range(context)
        if key <= query and (window is None or query - key < window)
    )
    assert attended_pairs(context, window) == seen


def test_forward_flops_are_two_a_weight_and_the_exact_pairs():
    forward = flops(training__checkpoint_every=0).forward
    weights = 12 * 768 * (2 * 768 + 2 * 384)  # attention
    weights += 12 * 8 * 768 + 12 * 3 * 3 * 768 * 1536  # router, two experts and the shared one
    weights += 128_000 * 768
    pairs = 6 * (4096 * 4097 // 2) + 6 * (128 * 129 // 2 + (4096 - 128) * 128)
    assert forward.total == pytest.approx(2 * weights + 4 * 768 * pairs / 4096, rel=1e-12)


def test_backward_is_twice_the_forward():
    counted = flops()
    assert counted.backward.total == pytest.approx(2 * counted.forward.total, rel=1e-12)
    assert counted.step == pytest.approx(3 * counted.forward.total + counted.recompute.total)


def test_recomputing_the_up_projection_costs_half_of_its_gradient():
    # theory.txt: 6G a token against 4G, with G = 2 · d_model · d_ff and gate and up 2G.
    saved = flops(training__checkpoint_every=0, model__moe__backward="save").recompute
    again = flops(training__checkpoint_every=0, model__moe__backward="recompute").recompute
    g = 2 * 768 * 1536
    assert saved.experts == 0
    assert again.experts == pytest.approx(12 * 2 * 2 * g)


def test_a_period_recomputes_its_part_of_the_forward():
    plain = flops(training__checkpoint_every=0).recompute
    third = flops(training__checkpoint_every=3)
    assert third.recompute.projections == pytest.approx(third.forward.projections / 3)
    assert third.recompute.head == 0
    # layers 0, 3, 6, 9 are two of each kind
    assert third.recompute.scores - plain.scores == pytest.approx(third.forward.scores / 3)


def test_without_training_only_the_forward_is_counted():
    counted = flops(training=None)
    assert counted.context == 131_072
    assert (counted.backward, counted.recompute, counted.step) == (None, None, None)


def test_the_cache_of_a_window_layer_is_a_ring():
    spec = lite(
        model__layers=24,
        model__d_model=2880,
        model__attention__heads=64,
        model__attention__kv_heads=8,
        model__attention__head_dim=64,
    )
    cache = count_kv_cache(spec, "bf16")
    entry = 2 * 8 * 64 * 2
    assert cache.full_layers_bytes == 12 * entry * 131_072 == 3 * 2**30
    assert cache.window_layers_bytes == 12 * entry * 128
    assert cache.all_full_bytes == 6 * 2**30


def test_a_ring_is_never_longer_than_the_context():
    spec = lite(inference__context=64, inference__batch=3)
    cache = count_kv_cache(spec, "fp32")
    assert cache.total_bytes == 12 * 3 * 64 * 2 * 4 * 96 * 4
    assert cache.reduction == 1.0


def test_a_spec_without_inference_has_no_cache():
    assert count_kv_cache(lite(inference=None), "bf16") is None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(spec=small_specs(training__precision="fp32"))
def test_the_count_is_the_built_models(spec):
    plan = resolve(spec, CPU)
    model = build(plan, device="meta")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == plan.parameters.total
    by_name = {
        "router": plan.parameters.router,
        "sinks": plan.parameters.sinks,
        "embedding": plan.parameters.embedding,
        "head": plan.parameters.head,
    }
    for name, count in by_name.items():
        assert sum(n for full, n in sizes.items() if full.split(".")[-1] == name) == count


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("experts", [1, 8, 64])
def test_the_count_is_exact_whatever_the_experts_and_the_head(experts, tied):
    # vllm-fit#27, torchtitan#3225: a mixture counted as one MLP; a tied head counted twice or not
    spec = lite(model__tie_embeddings=tied, model__moe__experts=experts, model__moe__top_k=1)
    plan = resolve(spec, lookup("h200"))
    vocabulary, d, heads, kv_heads, head_dim, d_ff = 128_000, 768, 8, 4, 96, 1536
    layer = d * head_dim * (2 * heads + 2 * kv_heads)  # q and output, k and v; no biases
    layer += heads + 2 * d  # sinks, two norms
    layer += d * experts + 3 * d * d_ff * (experts + 1)  # router, experts and the shared one
    by_hand = 12 * layer + d + (1 if tied else 2) * vocabulary * d
    built = sum(parameter.numel() for parameter in build(plan, device="meta").parameters())
    assert built == plan.parameters.total == by_hand


@pytest.mark.parametrize("name", ["tiny", "gpt_oss_smoke", "gpt_oss_lite"])
def test_the_count_is_the_built_models_for_shipped_specs(name):
    spec = load_spec(Path(__file__).parents[2] / "specs" / f"{name}.yaml")
    plan = resolve(spec, lookup(spec.target.gpu))
    model = build(plan, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == plan.parameters.total
