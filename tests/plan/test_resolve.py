import subprocess
import sys
import time

import pytest

from gptoss_builder.errors import CapError, TargetError
from gptoss_builder.plan import training_memory
from gptoss_builder.plan.memory import estimate_memory
from gptoss_builder.plan.resolve import decide, resolve
from gptoss_builder.targets import lookup
from tests.plan.specs import lite


def execution(target, **changes):
    return decide(lite(**changes), lookup(target))


def test_the_plan_names_the_target_that_was_asked_for():
    plan = resolve(lite(), lookup("h200"))
    assert plan.spec.target.gpu == "h200"
    assert plan.target.name == "h200"
    assert plan.spec.target.margin_gib == 2.0


@pytest.mark.parametrize(
    ("target", "window", "full"),
    [
        ("a100-80gb", "flash", "flash"),
        ("l4", "flash", "flash"),
        ("h200", "flash", "cudnn"),
        ("b200", "flash", "cudnn"),
        ("rtx5090", "flash", "flash"),
        ("cpu", "math", "math"),
    ],
)
def test_auto_attention_is_settled_for_the_target(target, window, full):
    decided = execution(target)
    assert (decided.window_attention, decided.full_attention) == (window, full)


def test_auto_attention_in_fp32_is_the_explicit_softmax():
    assert execution("h200", training__precision="fp32").full_attention == "math"


@pytest.mark.parametrize(
    ("head_dim", "full"),
    [(96, "cudnn"), (128, "cudnn"), (136, "flash"), (264, "math"), (12, "math")],
)
def test_auto_attention_follows_what_the_kernels_take(head_dim, full):
    assert execution("h200", model__attention__head_dim=head_dim).full_attention == full


def test_flash_asked_by_name_is_flash_everywhere():
    decided = execution("h200", model__attention__backend="flash")
    assert (decided.window_attention, decided.full_attention) == ("flash", "flash")


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("cpu", {"model__attention__backend": "flash"}, "set auto or math"),
        ("h200", {"model__attention__backend": "flash", "training__precision": "fp32"}, "fp32"),
        ("h200", {"model__attention__backend": "flash", "model__attention__head_dim": 12}, "12"),
        ("t4", {}, "set fp32"),
        ("cpu", {"model__moe__dispatch": "triton_grouped"}, "set stacked"),
        ("cpu", {"model__moe__dispatch": "grouped_mm"}, "set stacked"),
        ("a100-80gb", {"model__moe__dispatch": "grouped_mm"}, "sm90, sm100 and sm103"),
        ("h200", {"model__moe__dispatch": "grouped_mm", "training__precision": "fp32"}, "fp32"),
        ("h200", {"model__moe__dispatch": "grouped_mm", "model__d_model": 700}, "d_model is 700"),
        ("h200", {"model__moe__dispatch": "triton_grouped", "model__moe__d_ff": 12}, "d_ff is 12"),
        ("h200", {"model__moe__dispatch": "triton_grouped", "model__moe__experts": 1024}, "1023"),
        ("b300", {"model__moe__dispatch": "grouped_mm", "model__moe__experts": 2048}, "1023"),
    ],
)
def test_what_the_target_cannot_run_is_refused_in_words(target, changes, words):
    with pytest.raises(TargetError) as caught:
        execution(target, **changes)
    assert words in str(caught.value)


def test_many_experts_are_fine_where_no_product_is_grouped():
    for target, dispatch in (("a100-80gb", "triton_grouped"), ("h200", "stacked")):
        changes = {"model__moe__dispatch": dispatch, "model__moe__experts": 2048}
        assert execution(target, **changes).down_products == "loop"
    most = {"model__moe__dispatch": "triton_grouped", "model__moe__experts": 1023}
    assert execution("h200", **most).down_products == "grouped_mm"


@pytest.mark.parametrize(
    ("target", "dispatch", "up", "down"),
    [
        ("h200", "stacked", "loop", "loop"),
        ("h200", "grouped_mm", "grouped_mm", "grouped_mm"),
        ("h200", "triton_grouped", "triton", "grouped_mm"),
        ("a100-80gb", "triton_grouped", "triton", "loop"),
        ("b300", "triton_grouped", "triton", "grouped_mm"),
    ],
)
def test_dispatch_says_what_runs(target, dispatch, up, down):
    decided = execution(target, model__moe__dispatch=dispatch)
    assert decided.up_products == up
    assert (decided.down_products, decided.backward_products) == (down, down)


@pytest.mark.parametrize(
    ("every", "layers"),
    [(0, ()), (1, tuple(range(12))), (3, (0, 3, 6, 9)), (5, (0, 5, 10)), (13, (0,))],
)
def test_a_period_checkpoints_layer_zero_and_every_nth(every, layers):
    assert execution("h200", training__checkpoint_every=every).checkpointed_layers == layers


def test_serving_alone_takes_the_cards_own_precision():
    assert execution("h200", training=None).precision == "bf16"
    assert execution("t4", training=None).precision == "fp32"
    assert execution("cpu", training=None).precision == "fp32"


@pytest.mark.parametrize("width", [8192, 8193])
def test_the_caps_hold_for_a_spec_that_was_never_validated(width):
    spec = lite()
    model = spec.model.model_copy(update={"d_model": width})
    unchecked = spec.model_copy(update={"model": model})
    if width == 8192:
        assert resolve(unchecked, lookup("h200")).parameters.embedding == 128_000 * 8192
        return
    with pytest.raises(CapError, match="8193"):
        resolve(unchecked, lookup("h200"))


def test_the_same_spec_and_target_give_the_same_plan():
    assert resolve(lite(), lookup("h200")) == resolve(lite(), lookup("h200"))


def quickest(call, limit):
    """Seconds of the quickest of many calls that remember none; other work gets five to pass."""
    best, end = float("inf"), time.perf_counter() + 5
    while best > limit and time.perf_counter() < end:
        training_memory._layer_tapes.cache_clear()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def test_a_plan_takes_three_milliseconds_and_the_memory_half_of_one():
    spec, target = lite(), lookup("h200")
    plan = resolve(spec, target)
    decided = (plan.execution, plan.parameters, plan.kv_cache)
    assert quickest(lambda: resolve(spec, target), 3e-3) <= 3e-3
    assert quickest(lambda: estimate_memory(spec, *decided), 0.5e-3) <= 0.5e-3


def test_planning_imports_neither_torch_nor_triton():
    code = (
        "import sys, gptoss_builder.plan.resolve, gptoss_builder.plan.artifact;"
        "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cudnn_is_not_chosen_for_a_single_token():
    # it refuses one, and the plan must not name what the model refuses
    one = resolve(lite(training__context=1), lookup("h200")).execution
    two = resolve(lite(training__context=2), lookup("h200")).execution
    assert (one.full_attention, two.full_attention) == ("flash", "cudnn")
