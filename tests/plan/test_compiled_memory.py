"""What a compiled backward of a block holds on its way; it leaves what a plain one leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gptoss_builder.plan.layer_memory import DX, DY, GRADIENTS, OUTPUTS, Layer
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.sizes import sizes
from gptoss_builder.plan.tape import Tape
from gptoss_builder.targets import lookup
from tests.plan.specs import lite


def walked(size, fresh):
    layer = Layer(size, "full", fresh=fresh)
    tape = Tape({"layer input": size.stream})
    layer.forward(tape)
    tape.drop("layer output")
    tape.hold(DY, size.stream)
    layer.backward(tape)
    return tape


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("changes", [{}, {"model__moe__shared_experts": 0}])
@pytest.mark.parametrize("backward", ["save", "recompute"])
def test_a_compiled_backward_leaves_what_a_plain_one_leaves(fresh, changes, backward):
    spec = lite(**changes, model__moe__backward=backward)
    size = sizes(spec, resolve(spec, lookup("h200")).execution, 8, 4096)
    compiled, plain = (walked(replace(size, fused=fused), fresh).items for fused in (True, False))
    assert compiled == plain
    assert set(plain) == ({DY, GRADIENTS} if fresh else {DY})


@pytest.mark.parametrize("shared", [0, 1])
def test_attentions_backward_finds_what_the_experts_norm_waits_for(shared):
    heads = {"model__attention__heads": 32, "model__attention__head_dim": 128}
    spec = lite(**heads, model__moe__shared_experts=shared, model__moe__d_ff=64)
    size = sizes(spec, resolve(spec, lookup("h200")).execution, 8, 4096)
    peak = walked(replace(size, fused=True), fresh=True).peak_items()
    assert peak["attention backward scratch"]
    assert peak[DY] == 2 * size.stream
    assert peak[DX] == (2 + shared) * size.stream
    assert peak["residual after attention"] == size.stream
    # bf16: those of attention's output and of the experts, not yet in fp32
    output = size.d_model * size.heads * size.head_dim
    experts = 3 * size.d_model * (size.experts * size.d_ff + size.shared)
    assert peak[OUTPUTS] == 2 * (output + experts)
