"""The elementwise ops against plain autograd in float64, whole and in chunks."""

from __future__ import annotations

import functools

import pytest
import torch

from gptoss_builder.kernels import elementwise
from gptoss_builder.kernels.elementwise import combine, silu_mul, silu_mul_backward
from tests.tolerances import assert_close


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("chunk", [1, 100, 2**23])
@pytest.mark.parametrize("scaled", [False, True])
def test_activation_matches_autograd_whole_and_in_chunks(chunk, scaled, monkeypatch):
    monkeypatch.setattr(elementwise, "CHUNK", chunk)
    gate_up = torch.randn(13, 2 * 9, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(13, dtype=torch.float64, requires_grad=True)
    gate, up = gate_up.chunk(2, dim=1)
    h = gate / (1 + torch.exp(-gate)) * up
    scaled_h = h * scale[:, None] if scaled else h
    dh = torch.randn_like(h)
    scaled_h.backward(dh)
    assert_close(silu_mul(gate_up.detach(), False), h)
    dgate_up, again, dscale = silu_mul_backward(
        gate_up.detach(), dh, scale.detach() if scaled else None, False
    )
    assert_close(dgate_up, gate_up.grad)
    assert_close(again, scaled_h)
    if scaled:
        assert_close(dscale, scale.grad)
    else:
        assert len(dscale) == 0


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("chunk", [1, 50, 2**23])
def test_combine_is_a_weighted_sum_of_each_tokens_rows(chunk, monkeypatch):
    monkeypatch.setattr(elementwise, "CHUNK", chunk)
    y, position = torch.randn(22, 5), torch.randperm(22).view(11, 2)
    weight = torch.rand(11, 2)
    expected = torch.stack(
        [
            sum(w * y[p].double() for p, w in zip(positions, weights, strict=True))
            for positions, weights in zip(position.tolist(), weight.double().tolist(), strict=True)
        ]
    )
    assert_close(combine(y, position, weight, False), expected, torch.float32)
    assert_close(combine(y, position, None, False), y.double()[position].sum(1), torch.float32)


def test_far_tails_of_the_gate_are_finite():
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]])
    h = silu_mul(torch.cat([gate, torch.ones(1, 5)], dim=1), False)
    assert h.tolist() == [[-0.0, pytest.approx(0.0, abs=1e-30), 0.0, 100.0, 1e4]]


def test_what_wants_a_gradient_and_what_does_not_are_compiled_once(monkeypatch):
    """And without PyTorch's warning about the `.grad` of a tensor that is no leaf."""
    compiles = []

    def backend(graph, _):
        compiles.append(graph)
        return graph.forward

    compile_eager = functools.partial(torch.compile, backend=backend)
    monkeypatch.setattr(elementwise.torch, "compile", compile_eager)
    y, position = torch.randn(22, 23), torch.arange(22).view(11, 2)
    weight = torch.rand(11, 2, requires_grad=True).softmax(1)
    trained = elementwise.run_compiled(elementwise._combine, y, position, weight)
    with torch.no_grad():
        evaluated = elementwise.run_compiled(elementwise._combine, y, position, weight.detach())
    assert torch.equal(trained, evaluated)
    assert len(compiles) == 1
