import pytest

from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.training_memory import training_moments
from gptoss_builder.targets import lookup
from tests.plan.specs import lite

GIB = 2**30


def training(target="h200", **changes):
    return resolve(lite(**changes), lookup(target)).memory.training


def moment(estimate, name):
    return next(one for one in estimate.moments if one.name.startswith(name))


def item(one, name):
    return next((part.bytes for part in one.items if part.name == name), 0)


def test_the_moments_come_in_the_order_of_a_step():
    names = [one.name.split()[0] for one in training().moments]
    assert names == ["forward", "loss", "backward", "optimizer"]


def test_the_peak_is_the_largest_moment_and_its_items_add_up():
    estimate = training()
    sums = {one.name: sum(part.bytes for part in one.items) for one in estimate.moments}
    assert sums == {one.name: one.allocated_bytes for one in estimate.moments}
    assert estimate.peak == max(sums, key=sums.get)


def test_what_must_fit_is_reserved_and_context():
    estimate = training()
    assert estimate.total_bytes == estimate.reserved_bytes + estimate.context_bytes
    assert estimate.reserved_bytes > estimate.allocated_bytes > 0


def test_a_processor_has_no_context_and_no_allocator():
    estimate = training("cpu", training__precision="fp32")
    assert estimate.context_bytes == 0
    assert estimate.reserved_bytes == estimate.allocated_bytes


def test_logits_exist_for_one_chunk_only():
    # automodel#3907, trl#5575: the whole [tokens, vocab] was there although the loss was chunked.
    wide = {"model__vocab": 201_088, "training__context": 8192, "training__micro_batch": 1}
    large = moment(training(**wide, training__loss_chunk=4096), "loss")
    small = moment(training(**wide, training__loss_chunk=256), "loss")
    # bf16 logits, their fp32 copy, two numbers a block
    per_token = 201_088 * (2 + 4) + 2 * 4 * 201_088 // 128
    assert large.allocated_bytes - small.allocated_bytes == (4096 - 256) * per_token


def test_logits_of_a_long_context_without_chunks_do_not_fit_a_card():
    estimate = training(
        "h200",
        model__vocab=201_088,
        training__context=131_072,
        training__micro_batch=1,
        training__loss_chunk=131_072,
    )
    assert estimate.total_bytes > lookup("h200").memory_bytes


def test_no_mask_grows_with_the_window():
    # nanochat#825: a full mask was built whatever the window.
    narrow = training(model__attention__window=16)
    wide = training(model__attention__window=1024)
    assert narrow.allocated_bytes == wide.allocated_bytes


def test_the_explicit_softmax_of_a_window_layer_grows_with_the_window():
    math = {"model__attention__backend": "math", "model__attention__pattern": ["window"]}
    narrow = training(**math, model__attention__window=16)
    wide = training(**math, model__attention__window=1024)
    assert wide.allocated_bytes > narrow.allocated_bytes + GIB


def test_the_optimizer_is_fused_and_copies_no_parameters():
    # pytorch#97712: AdamW foreach needs one more copy of the parameters.
    plan = resolve(lite(training__accumulate=1), lookup("h200"))
    one = moment(plan.memory.training, "optimizer")
    parameters = plan.parameters.total
    copied = parameters - plan.parameters.embedding - plan.parameters.router
    copied -= plan.parameters.norms + plan.parameters.sinks
    tokens = 2 * 8 * 4096 * 8
    assert one.allocated_bytes == 16 * parameters + 2 * copied + tokens


def test_every_layer_checkpointed_needs_less_than_none():
    # The published heuristic says that both need the same.
    none, all_ = training(training__checkpoint_every=0), training(training__checkpoint_every=1)
    saved = moment(none, "forward").allocated_bytes - moment(all_, "forward").allocated_bytes
    assert all_.allocated_bytes < none.allocated_bytes
    assert saved > 11 * 8 * 4096 * 768 * 2 * 3  # at least three streams a layer


def test_a_checkpointed_layer_keeps_its_input_alone():
    forward = moment(training(training__checkpoint_every=1), "loss")
    assert item(forward, "saved by the layers") == 13 * 8 * 4096 * 768 * 2  # 12 inputs, last output


def test_saving_gate_and_up_costs_their_bytes_a_layer():
    plain = {"training__checkpoint_every": 0, "model__moe__dispatch": "grouped_mm"}
    again = item(moment(training(**plain), "loss"), "saved by the layers")
    kept = training(**plain, model__moe__backward="save")
    rows = 8 * 4096 * (2 + 1)  # two routed experts and the shared one
    assert item(moment(kept, "loss"), "saved by the layers") - again == 12 * rows * 2 * 1536 * 2


def test_compile_leaves_no_elementwise_temporaries():
    eager = {"training__checkpoint_every": 0, "model__vocab": 512, "model__moe__d_ff": 8}
    fused = training(**eager, training__compile=True)
    assert fused.allocated_bytes < training(**eager).allocated_bytes
    worst = moment(fused, "backward")
    assert item(worst, "elementwise temporaries") <= 8 * 4096 * 768 * 4


def test_flash_attention_has_scratch_that_fake_tensors_do_not_show():
    small = {"model__d_model": 64, "model__vocab": 512, "model__moe__d_ff": 8}
    plan = resolve(lite(**small, training__compile=True), lookup("h200"))
    arguments = (plan.spec, plan.execution, plan.parameters)
    with_scratch = training_moments(*arguments)
    without = training_moments(*arguments, scratch=False)
    queries = 8 * 8 * 4096
    # dq in fp32 and one sum a query; dk and dv for every query head
    scratch = queries * (96 + 1) * 4 + 2 * queries * 96 * 2
    difference = with_scratch[2].allocated_bytes - without[2].allocated_bytes
    assert 0.5 * scratch < difference <= scratch


def test_inference_holds_weights_and_the_cache():
    plan = resolve(lite(training=None), lookup("h200"))
    serving = plan.memory.inference
    held = 4 * plan.parameters.total + plan.kv_cache.total_bytes
    assert [one.name for one in serving.moments] == ["prefill", "decode"]
    for one in serving.moments:
        assert item(one, "parameters") == 4 * plan.parameters.total
        assert item(one, "key-value cache") == plan.kv_cache.total_bytes
        assert one.allocated_bytes > held
    assert plan.memory.training is None


def test_a_shorter_prefill_chunk_needs_less():
    long = resolve(lite(inference__prefill_chunk=8192), lookup("h200")).memory.inference
    short = resolve(lite(inference__prefill_chunk=512), lookup("h200")).memory.inference
    assert short.allocated_bytes < long.allocated_bytes


@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_one_token_and_one_expert_are_no_special_case(target):
    changes = {
        "model__moe__experts": 1,
        "model__moe__top_k": 1,
        "model__moe__shared_experts": 0,
        "model__layers": 1,
        "training__context": 1,
        "training__micro_batch": 1,
        "training__precision": "fp32",
        "inference__context": 1,
    }
    plan = resolve(lite(**changes), lookup(target))
    assert plan.memory.training.allocated_bytes > 16 * plan.parameters.total
