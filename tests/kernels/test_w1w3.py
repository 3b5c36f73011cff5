"""The W1/W3 op against a naive loop in float64: values, gradients, refusals."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch
from torch import Tensor

from gptoss_builder.errors import (
    CapError,
    DeviceError,
    InputError,
    KernelError,
    LaunchError,
    MissingTritonError,
)
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from tests.kernels.rows import inputs, launch, offsets
from tests.tolerances import assert_close

COUNTS = [[0, 17, 1, 0], [63], [0, 0, 5], [16, 16, 33]]


def naive(x_RD: Tensor, w13_EFD: Tensor, counts: list[int]) -> Tensor:
    """Row by row, column by column: no library product but a dot."""
    d_ff = w13_EFD.shape[1] // 2
    experts = [e for e, count in enumerate(counts) for _ in range(count)]
    rows = []
    for row, expert in zip(x_RD, experts, strict=True):
        gate = torch.stack([torch.dot(w, row) for w in w13_EFD[expert, :d_ff]])
        up = torch.stack([torch.dot(w, row) for w in w13_EFD[expert, d_ff:]])
        rows.append(gate / (1 + torch.exp(-gate)) * up)
    return torch.stack(rows)


def exact(x: Tensor, w13: Tensor, ends: Tensor, dh: Tensor, rows: Tensor | None = None):
    x64 = x.detach().double().cpu().requires_grad_()
    w64 = w13.detach().double().cpu().requires_grad_()
    h = w1w3_reference(x64, w64, ends.cpu(), None if rows is None else rows.cpu())
    h.backward(dh.double().cpu())
    return h.detach(), x64.grad, w64.grad


@pytest.mark.parametrize("counts", COUNTS)
def test_oracle_matches_a_naive_loop_in_float64(counts):
    x, w13, ends = inputs(counts, 7, 5, dtype=torch.float64)
    h = w1w3_reference(x, w13, ends)
    dh = torch.randn_like(h)
    ours = torch.autograd.grad(h, (x, w13), dh)
    theirs_h = naive(x, w13, counts)
    theirs = torch.autograd.grad(theirs_h, (x, w13), dh)
    for actual, expected in zip((h, *ours), (theirs_h, *theirs), strict=True):
        assert (actual - expected).abs().max() < 1e-10


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("backward", ["recompute", "save"])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loop_matches_oracle_in_values_and_gradients(counts, backward, dtype):
    x, w13, ends = inputs(counts, 24, 40, dtype=dtype)
    h = w1w3(x, w13, ends, implementation="loop", backward=backward)
    dh = torch.randn_like(h)
    h.backward(dh)
    for name, actual, expected in zip(
        ("h", "dx", "dw13"), (h, x.grad, w13.grad), exact(x, w13, ends, dh), strict=True
    ):
        assert_close(actual, expected, name=name)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(
    ("counts", "d_model", "d_ff", "config"),
    [
        ([0, 17, 1, 0], 72, 40, launch()),
        ([0, 17, 1, 0], 72, 40, launch(persistent=True, descriptors=True)),
        ([63], 8, 24, launch(block_n=32)),
        ([16, 1, 16], 100, 8, launch(block_k=16, persistent=True)),
        ([5, 0, 40], 64, 32, launch(block_t=32, descriptors=True)),
    ],
)
@pytest.mark.parametrize("backward", ["recompute", "save"])
def test_kernel_matches_oracle_in_values_and_gradients(
    counts, d_model, d_ff, config, backward, device
):
    x, w13, ends = inputs(counts, d_model, d_ff, device=device)
    h = w1w3(x, w13, ends, implementation="triton", launch=config, backward=backward)
    dh = torch.randn_like(h)
    h.backward(dh)
    for name, actual, expected in zip(
        ("h", "dx", "dw13"), (h, x.grad, w13.grad), exact(x, w13, ends, dh), strict=True
    ):
        assert_close(actual, expected, name=name)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("implementation", ["loop", "triton"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_rows_are_gathered_and_their_gradients_summed(implementation, index, device):
    x, w13, ends = inputs([3, 0, 18], 24, 16, device=device)
    tokens = x.detach()[:9].clone().requires_grad_()
    rows = torch.randint(0, 9, (21,), dtype=index).to(device)
    h = w1w3(tokens, w13, ends, implementation=implementation, launch=launch(), rows_R=rows)
    dh = torch.randn_like(h)
    h.backward(dh)
    expected = exact(tokens, w13, ends, dh, rows)
    for actual, wanted in zip((h, tokens.grad, w13.grad), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("descriptors", [False, True])
def test_nan_beside_the_tensors_and_in_other_experts_stays_out(descriptors, device):
    d_model, d_ff = 24, 8  # neither is a multiple of a block
    x, w13, ends = inputs([5, 4, 7], d_model, d_ff, device=device)
    padded_x = torch.full((40, d_model), torch.nan, device=device)
    padded_x[:16] = x.detach()
    weights = torch.full((5, 2 * d_ff, d_model), torch.nan, device=device)
    weights[1:4] = w13.detach()
    config = launch(block_k=32, block_n=32, descriptors=descriptors)
    expected = w1w3_reference(x.double(), w13.double(), ends)
    for _ in range(5):
        h = w1w3(padded_x[:16], weights[1:4], ends, implementation="triton", launch=config)
        assert_close(h, expected)


def test_rows_of_one_expert_do_not_see_the_rows_of_another(device):
    x, w13, ends = inputs([9, 9], 24, 8, device=device)
    bad = x.detach().clone()
    bad[4] = torch.nan
    good_h = w1w3(x.detach(), w13.detach(), ends, implementation="triton", launch=launch())
    bad_h = w1w3(bad, w13.detach(), ends, implementation="triton", launch=launch())
    others = [row for row in range(18) if row != 4]
    assert torch.equal(good_h[others], bad_h[others])
    assert bad_h[4].isnan().all()


@pytest.mark.parametrize("implementation", ["loop", "triton"])
def test_any_strides_give_the_same_result(implementation, device):
    x, w13, ends = inputs([11, 0, 6], 24, 8, device=device)
    x_strided = x.detach().T.contiguous().T
    w_strided = w13.detach().transpose(1, 2).contiguous().transpose(1, 2)
    config = launch(block_k=16)
    plain = w1w3(x.detach(), w13.detach(), ends, implementation=implementation, launch=config)
    strided = w1w3(x_strided, w_strided, ends, implementation=implementation, launch=config)
    assert not x_strided.is_contiguous()
    assert_close(strided, plain)


@pytest.mark.parametrize("implementation", ["loop", "triton"])
def test_no_rows_give_an_empty_result_and_zero_gradients(implementation, device):
    x, w13, ends = inputs([0, 0], 24, 8, device=device)
    h = w1w3(x, w13, ends, implementation=implementation, launch=launch())
    h.sum().backward()
    assert h.shape == (0, 8)
    assert torch.equal(w13.grad, torch.zeros_like(w13))


def test_only_the_gradients_that_are_wanted_are_computed():
    x, w13, ends = inputs([3, 2], 24, 8)
    w13.requires_grad_(False)
    w1w3(x, w13, ends, implementation="loop").sum().backward()
    assert x.grad is not None
    assert w13.grad is None


def test_an_expert_without_rows_gets_zeros_not_unwritten_memory(poisoned_memory, device):
    x, w13, ends = inputs([0, 3, 0], 24, 8, device=device)
    w1w3(x, w13, ends, implementation="triton", launch=launch()).sum().backward()
    assert torch.equal(w13.grad[[0, 2]], torch.zeros_like(w13.grad[[0, 2]]))
    assert w13.grad[1].abs().max() > 0


@pytest.mark.parametrize("which", ["d_model", "d_ff"])
@pytest.mark.parametrize("implementation", ["reference", "loop", "triton"])
def test_cap_passes_8192_and_refuses_8193(which, implementation):
    for width in (8192, 8193):
        d_model, d_ff = (width, 8) if which == "d_model" else (8, width)
        x = torch.zeros(0, d_model)
        w13 = torch.zeros(1, 2 * d_ff, d_model)
        ends = offsets([0])
        if width == 8192:
            assert w1w3(x, w13, ends, implementation=implementation, launch=launch()).shape == (
                0,
                d_ff,
            )
        else:
            with pytest.raises(CapError, match=f"{which} is 8193") as caught:
                w1w3(x, w13, ends, implementation=implementation, launch=launch())
            assert isinstance(caught.value, ValueError)


def test_missing_triton_is_an_import_error_that_names_the_way_out(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" or name.endswith("w1w3_triton"):
            monkeypatch.delitem(sys.modules, name)
    real_import = builtins.__import__

    def without_triton(name: str, *args, **kwargs):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_triton)
    x, w13, ends = inputs([3], 8, 8)
    with pytest.raises(MissingTritonError, match="dispatch: stacked") as caught:
        w1w3(x, w13, ends, implementation="triton", launch=launch())
    assert isinstance(caught.value, ImportError)
    assert w1w3(x, w13, ends, implementation="loop").shape == (3, 8)


def test_a_kernel_that_fails_raises_and_nothing_else_runs(monkeypatch, device):
    from triton.errors import TritonError

    from gptoss_builder.kernels import w1w3_triton
    from gptoss_builder.kernels.launches import launches

    class Broken:
        def __getitem__(self, grid):
            def run(*args, **kwargs):
                raise TritonError("out of resource: shared memory")

            return run

    monkeypatch.setattr(w1w3_triton, "w1w3_kernel", Broken())
    x, w13, ends = inputs([3], 8, 8, device=device)
    before = launches["up:loop"] + launches["up:grouped_mm"]
    with pytest.raises(KernelError, match=r"shared memory.*dispatch: stacked"):
        w1w3(x, w13, ends, implementation="triton", launch=launch())
    assert launches["up:loop"] + launches["up:grouped_mm"] == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_warps": 3}, "num_warps is 3"),
        ({"block_n": 24}, "block_n is 24"),
        ({"block_k": 8}, "block_k is 8"),
        ({"num_stages": 0}, "num_stages is 0"),
    ],
)
def test_a_launch_that_triton_takes_on_no_card_is_refused_in_words(change, said):
    x, w13, ends = inputs([4], 8, 8)
    with pytest.raises(LaunchError, match=said):
        w1w3(x, w13, ends, implementation="triton", launch=launch(**change))


def test_the_kernel_takes_neither_float64_nor_the_tensors_of_a_cpu(monkeypatch):
    from gptoss_builder.kernels import w1w3_triton
    from gptoss_builder.kernels.up import triton_activation_backward

    gate_up, dh = torch.zeros(2, 16, dtype=torch.float64), torch.zeros(2, 8, dtype=torch.float64)
    with pytest.raises(InputError, match=r"not torch\.float64"):
        triton_activation_backward(gate_up, gate_up.clone(), dh, None)
    x, w13, ends = inputs([4], 8, 8, dtype=torch.float64)
    with pytest.raises(InputError, match=r"not torch\.float64"):
        w1w3(x, w13, ends, implementation="triton", launch=launch())
    monkeypatch.setattr(w1w3_triton.triton.knobs.runtime, "interpret", False)
    x, w13, ends = inputs([4], 8, 8)
    with pytest.raises(DeviceError, match=r"CUDA GPU, and these are on cpu.*stacked"):
        w1w3(x, w13, ends, implementation="triton", launch=launch())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_TD": torch.zeros(4)}, "takes x"),
        ({"x_TD": torch.zeros(4, 16)}, "do not fit"),
        ({"w13_EFD": torch.zeros(2, 15, 8)}, "equal number"),
        ({"x_TD": torch.zeros(4, 8, dtype=torch.float64)}, "cast one of them"),
        ({"offsets_E": torch.tensor([2, 4])}, "int32"),
        ({"offsets_E": torch.tensor([4], dtype=torch.int32)}, "int32"),
        ({"offsets_E": torch.tensor([2, 5], dtype=torch.int32)}, "do not divide 4 rows"),
        ({"offsets_E": torch.tensor([5, 4], dtype=torch.int32)}, "do not divide 4 rows"),
        ({"rows_R": torch.zeros(4)}, "rows must be"),
        ({"implementation": "fast"}, "unknown"),
        ({"implementation": "triton", "launch": None}, "launch"),
        ({"implementation": "grouped_mm"}, "bfloat16"),
    ],
)
def test_input_that_does_not_fit_is_refused_in_words(change, message):
    arguments = {
        "x_TD": torch.zeros(4, 8),
        "w13_EFD": torch.zeros(2, 16, 8),
        "offsets_E": torch.tensor([2, 4], dtype=torch.int32),
        "implementation": "loop",
        **change,
    }
    with pytest.raises(InputError, match=message):
        w1w3(**arguments)


def test_grouped_mm_refuses_widths_that_are_no_multiples_of_8():
    x, w13, ends = inputs([4], 100, 8, dtype=torch.bfloat16)
    with pytest.raises(InputError, match="multiples of 8 and got 100"):
        w1w3(x, w13, ends, implementation="grouped_mm")


def test_two_runs_give_the_same_bits(device):
    def run():
        x, w13, ends = inputs([17, 0, 9], 24, 8, device=device)
        rows = (torch.arange(26) % 7).to(device)
        w1w3(
            x, w13, ends, implementation="triton", launch=launch(), rows_R=rows
        ).square().sum().backward()
        return x.grad, w13.grad

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_the_registered_op_keeps_torch_librarys_promises():
    from gptoss_builder.kernels.w1w3 import w1w3_op

    x, w13, ends = inputs([3, 4], 8, 8, dtype=torch.float64)
    torch.library.opcheck(w1w3_op, (x, w13, ends, None, "loop", [], "loop", True))


def test_gathered_rows_may_have_any_strides_beside_a_descriptor(device):
    x, w13, ends = inputs([11, 0, 6], 24, 8, device=device)
    rows = torch.arange(17, device=device).flip(0)
    strided = x.detach().T.contiguous().T
    config = launch(descriptors=True)
    h = w1w3(strided, w13, ends, implementation="triton", launch=config, rows_R=rows)
    assert_close(h, w1w3_reference(x.double(), w13.double(), ends, rows))


@pytest.mark.parametrize("shift", [1, 2])
def test_a_descriptor_refuses_a_tensor_that_starts_between_16_bytes(shift, device):
    _, w13, ends = inputs([4], 24, 8, device=device)
    moved = torch.empty(4 * 24 + shift, device=device)[shift:].view(4, 24)
    with pytest.raises(InputError, match="multiples of 16"):
        w1w3(moved, w13, ends, implementation="triton", launch=launch(descriptors=True))
