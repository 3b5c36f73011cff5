"""The W1/W3 op and the MoE layer on a GPU in bf16, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gptoss_builder.errors import InputError, KernelError
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from gptoss_builder.model.moe import MoE
from gptoss_builder.plan.launch import SEED, choose, choose_sorted
from gptoss_builder.plan.schema import Execution, LaunchConfig, Plan
from gptoss_builder.spec.schema import MoESpec
from tests.kernels.rows import inputs, launch, offsets
from tests.tolerances import relative_error

pytestmark = pytest.mark.gpu
LARGE = pytest.mark.xdist_group("large")
"""Needs up to 16 GiB: one at a time."""
FORWARD = {torch.bfloat16: 2e-3, torch.float32: 1e-5}
"""The result alone is rounded: 1.7e-3 in the norm."""
ROUNDED_GATE_UP = 4e-3
"""Gate and up are rounded too, where they go through memory."""
FEW = 1000
"""Of so few elements one may be rounded twice as far as the norm of many."""
BACKWARD = {torch.bfloat16: 5e-3, torch.float32: 1e-5}
SIZES = [(8, 24), (24, 1000), (72, 72), (1000, 8), (1000, 2880), (2880, 1000)]
COUNTS = [[0, 0, 0], [0, 0, 1], [0, 63, 0], [65, 0, 1], [1000, 0, 7], [129, 500, 371]]
"""Rows of each expert. Always three experts: for another number the kernel is compiled anew."""
OTHER_EXPERTS = [[0], [1], [1000, 0, 0, 7], [40, 0, 63, 1, 65]]
KINDS = ["table", "sorted", "pointers", "seed", "grouped_mm", "loop"]


def is_hopper() -> bool:
    return torch.cuda.get_device_capability() == (9, 0)


def table_row(kind: str) -> LaunchConfig:
    if kind == "seed":
        return SEED
    if kind == "pointers":
        return launch(64, 64, 64, num_stages=2)
    if not is_hopper():
        pytest.skip("descriptors are for sm90")
    return (
        choose_sorted("sm90", "bf16", 768, 1536)
        if kind == "sorted"
        else choose("sm90", "bf16", 768, 1536, "auto")
    )


def gradients(h: Tensor, x: Tensor, w13: Tensor, dh: Tensor) -> list[Tensor]:
    return [h, *torch.autograd.grad(h, (x, w13), dh)]


def judge(
    actual: list[Tensor], exact: list[Tensor], dtype: torch.dtype, *, fused: bool = True
) -> None:
    for name, ours, theirs in zip(("h", "dx", "dw13"), actual, exact, strict=True):
        limit = (FORWARD if name == "h" else BACKWARD)[dtype]
        if name == "h" and not fused:
            limit = ROUNDED_GATE_UP
        if ours.numel() < FEW:
            limit *= 2
        error = relative_error(ours, theirs)
        assert error <= limit, f"{name}: {error:.2e}"


def compare(kind: str, counts: list[int], d_model: int, d_ff: int, backward: str) -> None:
    """One op in bf16, values and gradients, against float64."""
    x, w13, ends = inputs(counts, d_model, d_ff, dtype=torch.bfloat16, device="cuda")
    triton = kind not in ("grouped_mm", "loop")
    h = w1w3(
        x,
        w13,
        ends,
        implementation="triton" if triton else kind,
        launch=table_row(kind) if triton else None,
        backward=backward,
        products="loop" if kind == "loop" or not is_hopper() else "grouped_mm",
    )
    dh = torch.randn_like(h)
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w13))
    exact = w1w3_reference(x64, w64, ends)
    ours, theirs = gradients(h, x, w13, dh), gradients(exact, x64, w64, dh.double())
    judge(ours, theirs, x.dtype, fused=triton)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d_model", "d_ff"), SIZES)
def test_bf16_is_as_near_to_float64_as_bf16_allows(kind, d_model, d_ff):
    for number, counts in enumerate(COUNTS):
        compare(kind, counts, d_model, d_ff, ("recompute", "save")[number % 2])


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_experts(kind):
    for number, counts in enumerate(OTHER_EXPERTS):
        compare(kind, counts, 72, 1000, ("recompute", "save")[number % 2])


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("backward", ["recompute", "save"])
@pytest.mark.parametrize("kind", ["table", "pointers"])
def test_gathered_rows_and_the_sums_of_their_gradients_are_right_and_the_same_twice(kind, backward):
    tokens, _, _ = inputs([500], 1000, 8, dtype=torch.bfloat16, device="cuda")
    _, w13, ends = inputs([400, 0, 37, 563], 1000, 72, dtype=torch.bfloat16, device="cuda")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(500, (1000,), generator=generator).cuda()
    x64, w64 = (t.detach().double().requires_grad_() for t in (tokens, w13))
    exact = w1w3_reference(x64, w64, ends, rows)
    dh = torch.randn(1000, 72, device="cuda", dtype=torch.bfloat16)
    theirs = gradients(exact, x64, w64, dh.double())

    def once() -> list[Tensor]:
        config = table_row(kind)
        h = w1w3(
            tokens, w13, ends, implementation="triton", launch=config, rows_R=rows,
            backward=backward,
        )  # fmt: skip
        return gradients(h, tokens, w13, dh)

    first, second = once(), once()
    judge(first, theirs, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("config", [SEED, choose("sm90", "fp32", 768, 1536, "auto")])
def test_fp32_is_exact(config):
    for counts, d_model, d_ff in (([65, 0, 1], 72, 1000), ([63], 100, 24), ([1000, 7], 1000, 72)):
        x, w13, ends = inputs(counts, d_model, d_ff, device="cuda")
        h = w1w3(x, w13, ends, implementation="triton", launch=config)
        dh = torch.randn_like(h)
        x64, w64 = (t.detach().double().requires_grad_() for t in (x, w13))
        exact = w1w3_reference(x64, w64, ends)
        judge(gradients(h, x, w13, dh), gradients(exact, x64, w64, dh.double()), x.dtype)


def test_a_width_that_is_no_multiple_of_8_runs_through_pointers_and_is_refused_elsewhere():
    x, w13, ends = inputs([40, 25], 100, 36, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        h = w1w3(x, w13, ends, implementation="triton", launch=table_row("pointers"))
        assert relative_error(h, w1w3_reference(x.double(), w13.double(), ends)) <= 2e-3
        with pytest.raises(InputError, match="multiples of 8"):
            w1w3(x, w13, ends, implementation="grouped_mm")
        with pytest.raises(InputError, match="16 bytes"):
            w1w3(x, w13, ends, implementation="triton", launch=launch(descriptors=True))


def test_a_configuration_too_large_for_the_card_stops_with_what_to_set():
    x, w13, ends = inputs([65], 512, 512, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(KernelError, match=r"128×128×128.*set another `kernel:`"):
        w1w3(x, w13, ends, implementation="triton", launch=launch(128, 128, 128, num_stages=8))


@pytest.mark.parametrize("d_model", [8, 24, 72, 100, 1000, 2880, 2888])
@pytest.mark.parametrize("kind", ["table", "pointers"])
def test_nan_right_after_the_tensors_stays_out_five_times(kind, d_model):
    if kind == "table" and d_model % 8:
        pytest.skip("descriptors want rows of a multiple of 16 bytes")
    d_ff = 72
    x, w13, ends = inputs([70, 3], d_model, d_ff, dtype=torch.bfloat16, device="cuda")
    padded_x = torch.full((400, d_model), torch.nan, dtype=x.dtype, device="cuda")
    padded_w = torch.full((4, 2 * d_ff, d_model), torch.nan, dtype=x.dtype, device="cuda")
    padded_x[:73], padded_w[1:3] = x.detach(), w13.detach()
    exact = w1w3_reference(x.double(), w13.double(), ends)
    config = table_row(kind)
    with torch.no_grad():
        runs = [
            w1w3(padded_x[:73], padded_w[1:3], ends, implementation="triton", launch=config)
            for _ in range(5)
        ]
    assert relative_error(runs[0], exact) <= 2e-3
    assert all(torch.equal(run, runs[0]) for run in runs)


@LARGE
def test_more_than_two_to_the_31_elements_of_rows():
    rows, d_model, d_ff = 1_079_839, 64, 1024
    x = torch.randn(rows, d_model, dtype=torch.bfloat16, device="cuda")
    w13 = torch.randn(3, 2 * d_ff, d_model, dtype=torch.bfloat16, device="cuda") / 8
    ends = torch.tensor([5, rows - 70, rows], dtype=torch.int32, device="cuda")
    x.requires_grad_()
    h = w1w3(x, w13, ends, implementation="triton", launch=table_row("pointers"), backward="save")
    assert 2 * h.numel() > 2**31
    h.backward(torch.ones_like(h))
    last = x.detach()[-70:].double().requires_grad_()
    exact = w1w3_reference(last, w13[2:].double(), offsets([70], "cuda"))
    exact.sum().backward()
    assert relative_error(h[-70:], exact) <= 2e-3
    assert relative_error(x.grad[-70:], last.grad) <= 5e-3


@LARGE
@pytest.mark.parametrize("kind", ["table", "pointers"])
def test_more_than_two_to_the_31_elements_of_weights(kind):
    experts, d_model, d_ff = 512, 4096, 1024
    w13 = torch.randn(experts, 2 * d_ff, d_model, dtype=torch.bfloat16, device="cuda").div_(64)
    assert w13.numel() > 2**31
    x = torch.randn(70, d_model, dtype=torch.bfloat16, device="cuda")
    ends = torch.zeros(experts, dtype=torch.int32, device="cuda")
    ends[0:] = 3
    ends[-1] = 70
    h = w1w3(x, w13, ends, implementation="triton", launch=table_row(kind))
    exact = w1w3_reference(x[3:].double(), w13[-1:].double(), offsets([67], "cuda"))
    assert relative_error(h[3:], exact) <= 2e-3


def layer(
    up: str = "triton",
    *,
    experts: int = 8,
    top_k: int = 2,
    backward: str = "recompute",
    d_model: int = 72,
    d_ff: int = 1000,
    dtype: torch.dtype = torch.bfloat16,
) -> MoE:
    products = "grouped_mm" if is_hopper() and up != "loop" else "loop"
    execution = Execution.model_construct(
        up_products=up,
        down_products=products,
        backward_products=products,
        backward=backward,
        elementwise={"loop": "plain", "triton": "triton"}.get(up, "compiled"),
    )
    moe = MoESpec(experts=experts, top_k=top_k, shared_experts=1, d_ff=d_ff)
    sizes = type("Sizes", (), {"model": type("Model", (), {"d_model": d_model, "moe": moe})})
    config = table_row("table" if is_hopper() else "pointers")
    with torch.device("cuda"):
        plan = Plan.model_construct(spec=sizes, execution=execution, launch=config)
        module = MoE(plan).to(dtype)
    generator = torch.Generator(device="cuda").manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator)
    return module


def run(module, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    parameters = list(module.parameters())
    y, aux = module(x)
    loss = (y.float() * torch.linspace(-1, 1, y.shape[1], device=y.device)).sum() + aux
    return [y.detach(), aux.detach(), *torch.autograd.grad(loss, [x, *parameters])]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("backward", ["recompute", "save"])
@pytest.mark.parametrize("tokens", [0, 1, 63, 1000])
def test_dispatches_agree_with_float64(tokens, backward):
    if not is_hopper():
        pytest.skip("grouped_mm is for sm90")
    x = torch.randn(tokens, 72, device="cuda", dtype=torch.bfloat16)
    exact_layer = layer("loop", dtype=torch.float64)
    for ours, theirs in zip(exact_layer.parameters(), layer("loop").parameters(), strict=True):
        ours.data.copy_(theirs)
    exact = run(exact_layer, x.double())
    for up in ("loop", "grouped_mm", "triton"):
        for ours, theirs in zip(run(layer(up, backward=backward), x), exact, strict=True):
            assert relative_error(ours, theirs) <= 8e-3


@pytest.mark.parametrize("up", ["grouped_mm", "triton"])
def test_no_step_of_the_layer_waits_for_the_device_and_two_runs_are_equal(up):
    if not is_hopper():
        pytest.skip("grouped_mm is for sm90")
    module, x = layer(up), torch.randn(500, 72, device="cuda", dtype=torch.bfloat16)
    first = run(module, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = run(module, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("backward", ["recompute", "save"])
def test_compiled_and_checkpointed_is_the_same(backward):
    module = layer("triton", backward=backward)
    x = torch.randn(500, 72, device="cuda", dtype=torch.bfloat16)
    plain = run(module, x)
    compiled = run(torch.compile(module, fullgraph=True), x)
    for ours, theirs in zip(compiled, plain, strict=True):
        assert relative_error(ours, theirs) <= 4e-3

    def replayed(x):
        return checkpoint(module, x, use_reentrant=False)

    replayed.parameters = module.parameters
    assert all(torch.equal(a, b) for a, b in zip(run(replayed, x), plain, strict=True))


def test_autocast_changes_no_bit_of_a_layer_in_bf16():
    module = layer("triton")
    x = torch.randn(65, 72, device="cuda", dtype=torch.bfloat16)
    plain = run(module, x)
    with torch.autocast("cuda", torch.bfloat16):
        cast = run(module, x)
    assert all(torch.equal(a, b) for a, b in zip(cast, plain, strict=True))


def test_ties_everywhere_replay_the_same_route_fifty_times():
    module = layer("triton")
    module.router.data.zero_()

    def replayed(x):
        return checkpoint(module, x, use_reentrant=False)

    replayed.parameters = module.parameters
    x = torch.randn(1, 72, device="cuda", dtype=torch.bfloat16).expand(257, -1)
    plain = run(module, x)
    for _ in range(50):
        assert all(torch.equal(a, b) for a, b in zip(run(replayed, x), plain, strict=True))


def test_a_nan_token_leaves_the_other_rows_bit_equal():
    module, x = layer("triton"), torch.randn(300, 72, device="cuda", dtype=torch.bfloat16)
    bad = x.clone()
    bad[5] = torch.nan
    with torch.no_grad():
        good_y, bad_y = module(x)[0], module(bad)[0]
    others = torch.arange(300, device="cuda") != 5
    assert torch.equal(good_y[others], bad_y[others])
    assert bad_y[5].isnan().all()


def test_fp32_router_on_the_tensor_cores_chooses_as_float64_does():
    from gptoss_builder.model.router import router_logits

    x = torch.randn(4096, 768, device="cuda", dtype=torch.bfloat16)
    router = torch.randn(128, 768, device="cuda").requires_grad_()
    x.requires_grad_()
    logits = router_logits(x, router)
    exact = x.detach().double() @ router.detach().double().T
    assert relative_error(logits, exact) < 1e-6
    dlogits = torch.randn_like(logits)
    dx, drouter = torch.autograd.grad(logits, (x, router), dlogits)
    assert relative_error(dx, dlogits.double() @ router.detach().double()) < 2e-3
    assert relative_error(drouter, dlogits.double().T @ x.detach().double()) < 1e-5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device_than_the_current_one():
    x, w13, ends = inputs([65, 3], 72, 24, dtype=torch.bfloat16, device="cuda:1")
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w13))
    exact = w1w3_reference(x64, w64, ends)
    for kind in ("pointers", "table"):
        with torch.cuda.device(0):
            h = w1w3(x, w13, ends, implementation="triton", launch=table_row(kind))
            dh = torch.randn_like(h)
            ours = gradients(h, x, w13, dh)
        theirs = torch.autograd.grad(exact, (x64, w64), dh.double(), retain_graph=True)
        judge(ours, [exact, *theirs], x.dtype)


def test_what_lies_right_after_the_row_index_is_not_followed():
    x, w13, ends = inputs([40, 25], 72, 24, dtype=torch.bfloat16, device="cuda")
    index = torch.full((400,), 2**40, dtype=torch.int64, device="cuda")
    index[:65] = torch.arange(65, device="cuda")
    with torch.no_grad():
        config = table_row("pointers")
        h = w1w3(x, w13, ends, implementation="triton", launch=config, rows_R=index[:65])
        torch.cuda.synchronize()
        assert relative_error(h, w1w3_reference(x.double(), w13.double(), ends)) <= 2e-3


def test_the_loop_asks_for_no_compiler(monkeypatch):
    from gptoss_builder.kernels import elementwise

    monkeypatch.setattr(elementwise, "_compile", lambda *_: pytest.fail("compiled"))
    run(layer("loop"), torch.randn(65, 72, device="cuda", dtype=torch.bfloat16))


@LARGE
def test_a_stride_beyond_32_bits_is_read_right():
    d_model, d_ff, stride = 8, 24, 2**29
    storage = torch.empty(d_model * stride, dtype=torch.bfloat16, device="cuda")
    x = storage.as_strided((4, d_model), (1, stride))
    plain, w13, ends = inputs([4], d_model, d_ff, dtype=torch.bfloat16, device="cuda")
    x.copy_(plain.detach())
    with torch.no_grad():
        h = w1w3(x, w13, ends, implementation="triton", launch=table_row("pointers"))
    assert relative_error(h, w1w3_reference(plain.double(), w13.double(), ends)) <= 4e-3
