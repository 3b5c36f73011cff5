"""What the closed form takes from the code of the kernels, counted in that code."""

from __future__ import annotations

import pytest
import torch

from gptoss_builder.kernels import elementwise
from gptoss_builder.plan import layer_memory
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.training_memory import training_sums
from gptoss_builder.targets import lookup
from tests.plan.oracle import LiveStorages
from tests.plan.specs import lite

ROWS, WIDTH = 512, 1024


def test_the_chunk_is_that_of_the_code() -> None:
    assert elementwise.CHUNK == layer_memory.CHUNK


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_temporaries_of_a_chunk_are_those_of_the_code(dtype: torch.dtype) -> None:
    gate_up, dh = torch.randn(ROWS, 2 * WIDTH).to(dtype), torch.randn(ROWS, WIDTH).to(dtype)
    live = LiveStorages()
    live.moment = "forward"
    with live, torch.no_grad():
        elementwise._silu_mul(gate_up)
    live.moment = "backward"
    with live, torch.no_grad():
        elementwise._silu_mul_backward(gate_up, dh, torch.rand(ROWS))
    elements = ROWS * WIDTH
    assert live.peaks["forward"] == layer_memory.ACTIVATION_BYTES * elements
    expected = layer_memory.ACTIVATION_BACKWARD_BYTES[dtype == torch.bfloat16] * elements
    assert live.peaks["backward"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("dispatch", "counted"), [("stacked", True), ("grouped_mm", False)])
def test_only_plain_pytorch_has_them(dispatch: str, counted: bool) -> None:
    spec = lite(model__moe__dispatch=dispatch)
    plan = resolve(spec, lookup("h200"))
    with_scratch, without = (
        next(
            one.total
            for one in training_sums(spec, plan.execution, plan.parameters, scratch=scratch)
            if one.name.startswith("backward")
        )
        for scratch in (True, False)
    )
    chunk = layer_memory.CHUNK * layer_memory.ACTIVATION_BACKWARD_BYTES[True]
    assert (with_scratch - without > chunk // 2) is counted
