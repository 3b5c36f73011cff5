import itertools
import math

import pytest

from gptoss_builder.plan.cost_rates import scores
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import lookup
from tests.plan.specs import lite


def plan(target="h200", price_per_hour=None, **changes):
    one = {
        "model__moe__dispatch": "triton_grouped",
        "model__moe__backward": "recompute",
        "training__accumulate": 1,
        "training__checkpoint_every": 0,
        "training__compile": True,
    }
    return resolve(lite(**(one | changes)), lookup(target), price_per_hour=price_per_hour)


def cost(target="h200", price_per_hour=None, **changes):
    return plan(target, price_per_hour, **changes).cost


def items(estimate):
    return {item.name: item for item in estimate.items}


def test_only_the_card_that_was_timed_is_called_measured():
    assert cost("h200").source == "measured"
    assert cost("a100-80gb").source == "derived"


@pytest.mark.parametrize(
    "changes",
    [
        {"training__precision": "fp32", "model__moe__dispatch": "stacked"},
        {"model__attention__backend": "math"},
        {"training__compile": False},
        {"kernel": {"block_t": 16, "block_k": 32, "block_n": 32, "num_warps": 4, "num_stages": 1}},
    ],
)
def test_what_was_timed_nowhere_is_called_a_bound(changes):
    assert cost(**changes).source == "bound"


def test_the_parts_add_up_to_the_step():
    estimate = cost()
    assert estimate.step_seconds == pytest.approx(sum(item.seconds for item in estimate.items))
    assert estimate.tokens_per_second == pytest.approx(8 * 4096 / estimate.step_seconds)
    assert estimate.gpu_hours == pytest.approx(61_000 * estimate.step_seconds / 3600)
    assert len(items(estimate)) == len(estimate.items)


def test_a_part_takes_its_work_over_the_rate_that_is_reached():
    card = lookup("a100-80gb")
    for item in cost("a100-80gb").items:
        if item.flops:
            assert item.seconds == pytest.approx(item.flops / card.bf16_rate / item.efficiency)
        elif item.bytes:
            assert item.seconds == pytest.approx(item.bytes / card.bandwidth / item.efficiency)
        assert item.evidence


# Every product of the model is in one part: no part's FLOPs are lost or counted twice.
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__moe__backward": "save"},
        {"training__checkpoint_every": 1},
        {"training__checkpoint_every": 3, "model__moe__backward": "save"},
        {"model__moe__shared_experts": 0, "model__tie_embeddings": False},
    ],
)
def test_flops_are_those_of_the_plan(changes):
    one = plan(**changes)
    counted = sum(item.flops for item in one.cost.items)
    again = 1 + len(one.execution.checkpointed_layers) / one.spec.model.layers
    router = (2 + again) * one.flops.forward.router  # its time is the bandwidth's
    assert counted == pytest.approx((one.flops.step - router) * 8 * 4096)


def test_saving_gate_and_up_spares_their_products_and_costs_their_bytes():
    again, saved = items(cost()), items(cost(model__moe__backward="save"))
    up = "experts' up-projection"
    assert saved[up].flops == pytest.approx(again[up].flops / 2)
    shared = "shared experts' products"
    assert saved[shared].flops == pytest.approx(again[shared].flops * 9 / 11)
    rows = 2 * 8 * 4096
    kept = saved["experts' gate and up, kept"]
    assert kept.bytes == 12 * rows * 2 * 1536 * 2
    assert "experts' gate and up, kept" not in again


def test_only_the_kernel_gathers_rows_and_applies_the_activation_by_itself():
    fused, apart = items(cost()), items(cost(model__moe__dispatch="grouped_mm"))
    assert apart["experts' gathers and sums"].bytes > fused["experts' gathers and sums"].bytes
    one_pass = 12 * 8 * 4096 * 1536 * 2
    # a token has two routed rows and one of the shared expert; the kernel's backward takes both
    assert fused["experts' activation"].bytes == 6 * (2 + 1) * one_pass
    assert fused["shared experts' activation"].bytes == 3 * one_pass
    assert apart["experts' activation"].bytes == (3 + 6) * 2 * one_pass
    assert apart["shared experts' activation"].bytes == (3 + 6) * one_pass


def test_accumulation_repeats_all_but_the_update():
    once, four = items(cost()), items(cost(training__accumulate=4))
    update = "optimizer and bf16 copies"
    assert four[update].seconds == pytest.approx(once[update].seconds)
    for name in once.keys() - {update, "gradient moves and norm"}:
        assert four[name].seconds == pytest.approx(4 * once[name].seconds)
    total, copied = plan().parameters.total, 12 * (768 * (1536 + 768) + 9 * 3 * 768 * 1536)
    gradients = "gradient moves and norm"
    assert once[gradients].bytes == 6 * copied + 4 * total
    assert four[gradients].bytes == 36 * copied + 36 * (total - copied) + 4 * total


def test_checkpointing_runs_the_forward_of_its_layers_again():
    none, third, every = (items(cost(training__checkpoint_every=period)) for period in (0, 3, 1))
    for name in (
        "projections",
        "norms, residuals, rotation",
        "cudnn attention, full layers, forward",
    ):
        assert none[name].seconds < third[name].seconds < every[name].seconds
    for name in ("vocabulary products", "loss, elementwise", "embedding"):
        assert none[name].seconds == every[name].seconds
    assert every["projections"].flops == pytest.approx(none["projections"].flops * 4 / 3)


def test_bytes_outside_the_experts_are_those_of_the_passes():
    tokens, d_model, query, qkv, vocab = 8 * 4096, 768, 768, 1536, 128_000
    parts = items(cost())
    # norms 2 + 3, residuals 5; rotation and values; sinks: then the same backward
    forward = 10 * d_model + 2 * qkv + 2 * query
    # gradients of q and k: written turned, in halves that are added up, then into those of qkv
    backward = 15 * d_model + 2 * qkv + 4 * (query + 384) + 2 * query
    last = 5 * d_model
    norms = 2 * tokens * (12 * (forward + backward) + last)
    assert parts["norms, residuals, rotation"].bytes == norms
    # logits read, read and written in bf16; the head's gradient zeroed, scaled, the head cast
    loss = 3 * 2 * tokens * vocab + (4 + 8 + 6) * vocab * d_model
    assert parts["loss, elementwise"].bytes == loss
    assert parts["attention gradients, cast and summed"].bytes == 12 * 20 * query * tokens
    no_sinks = items(cost(model__attention__sinks=False))
    assert no_sinks["norms, residuals, rotation"].bytes == norms - 12 * 4 * query * 2 * tokens


def test_the_router_of_a_checkpointed_layer_runs_its_forward_again():
    none, every = (items(cost(training__checkpoint_every=period)) for period in (0, 1))
    router = "router and sort"
    assert every[router].seconds == pytest.approx(none[router].seconds * 5 / 3)


def test_attention_that_keeps_its_probabilities_has_a_backward_of_two_forwards():
    kept = items(cost(model__attention__backend="math"))
    again = items(cost())
    for kind, kernel in (("full", "cudnn"), ("window", "flash")):
        forward, backward = (
            kept[f"math attention, {kind} layers, {way}"].flops for way in ("forward", "backward")
        )
        assert backward == pytest.approx(2 * forward)
        fused = again[f"{kernel} attention, {kind} layers, backward"].flops
        assert fused == pytest.approx(2.5 * forward)
    assert "attention gradients, cast and summed" not in kept


# Norms and sinks are active parameters that multiply nothing: 20,000 of 247 million.
def test_utilization_is_six_flops_a_parameter_and_attention_over_the_dense_rate():
    for tied in (True, False):
        one = plan(model__tie_embeddings=tied, training__checkpoint_every=1)
        active = one.parameters.active - (0 if tied else one.parameters.embedding)
        flops = 6 * active + 3 * one.flops.forward.scores
        utilization = flops * one.cost.tokens_per_second / lookup("h200").bf16_rate
        assert one.cost.model_flops_utilization == pytest.approx(utilization, rel=3e-4)


def test_the_user_names_the_price():
    assert cost().price is None
    priced = cost(price_per_hour=2.5)
    assert priced.price == pytest.approx(2.5 * priced.gpu_hours)


def test_a_processor_and_a_spec_without_training_have_no_cost():
    assert cost("cpu", training__precision="fp32", model__moe__dispatch="stacked") is None
    assert resolve(lite(training=None), lookup("h200")).cost is None


# From little work to much.
GROWING = {
    "training__context": [*range(1, 10), 31, 32, 63, 64, 127, 128, 129, 4095, 4096, 2**16, 2**24],
    "training__micro_batch": [1, 2, 3, 1000],
    "training__accumulate": [1, 2, 64],
    "training__checkpoint_every": [0, 100, 12, 7, 3, 1],
    "model__attention__window": [1, 2, 3, 16, 127, 128, 129, 256, 4095, 4096, 10**6],
    "model__attention__heads": [4, 8, 64],
    "model__layers": [1, 2, 3, 12, 1000],
    "model__vocab": [1, 2, 1021, 128_000],
    "model__d_model": [8, 64, 768, 8192],
    "model__moe__d_ff": [8, 1536, 8192],
    "model__moe__experts": [2, 3, 8, 300],
    "model__moe__top_k": [1, 2, 8],
    "model__moe__shared_experts": [0, 1, 5],
}


@pytest.mark.parametrize("field", GROWING)
@pytest.mark.parametrize(
    "base",
    [
        {},
        {"training__context": 129, "model__moe__backward": "save"},
        {"model__attention__backend": "flash", "training__accumulate": 3},
        {"training__precision": "fp32", "model__moe__dispatch": "stacked"},
        {"model__attention__backend": "math", "training__compile": False},
        {"model__layers": 1, "model__moe__shared_experts": 0},
        {"model__tie_embeddings": False, "model__moe__dispatch": "grouped_mm"},
    ],
)
def test_no_part_takes_less_when_its_work_grows(field, base):
    costs = [cost(**(base | {field: value})) for value in GROWING[field]]
    for one in costs:
        assert all(0 < item.seconds < math.inf for item in one.items)
        assert all(0 < item.efficiency <= 1 for item in one.items)
        assert 0 < one.model_flops_utilization < 1
    for less, more in itertools.pairwise(costs):
        assert less.step_seconds <= more.step_seconds * (1 + 1e-12)
        grown = items(more)
        for name in items(less).keys() & grown.keys():
            assert items(less)[name].seconds <= grown[name].seconds * (1 + 1e-12), name


def test_a_model_of_one_layer_and_one_expert_has_a_cost():
    one = cost(model__layers=1, model__moe__experts=1, model__moe__top_k=1, training__context=1)
    assert 0 < one.step_seconds < math.inf
    assert all(0 < item.seconds < math.inf for item in one.items)


# TFLOP/s on an H200: with and without a window in the profile, and two lengths of a sequence.
@pytest.mark.parametrize(
    ("kernel", "context", "window", "forward", "backward"),
    [
        ("flash", 4096, 128, 80, 87),
        ("flash", 4096, None, 299, 238),
        ("cudnn", 4096, None, 405, 345),
        ("cudnn", 65_536, None, 454, 413),
    ],
)
def test_attention_reaches_what_was_measured(kernel, context, window, forward, backward):
    for how, teraflops in zip(scores(kernel, context, window), (forward, backward), strict=True):
        assert how.value * lookup("h200").bf16_rate / 1e12 == pytest.approx(teraflops, rel=3e-3)


def test_a_window_that_sees_everything_costs_what_no_window_does():
    changes = {"model__attention__backend": "flash", "training__context": 4096}
    wide = items(cost(**changes, model__attention__window=4096))
    for way in ("forward", "backward"):
        window, full = (
            wide[f"flash attention, {kind} layers, {way}"].seconds for kind in ("window", "full")
        )
        assert window == pytest.approx(full)
