"""What the closed form takes from the elementwise code of the experts, counted in that code."""

from __future__ import annotations

import pytest
import torch

from gptoss_builder.kernels import elementwise
from gptoss_builder.plan import elementwise_memory
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.training_memory import training_sums
from gptoss_builder.targets import lookup
from tests.plan.oracle import LiveStorages
from tests.plan.specs import lite

ROWS, WIDTH = 512, 1024


def temporaries(function, *inputs):
    """Bytes for an element beside the inputs, at most, results included."""
    live = LiveStorages()
    with live, torch.no_grad():
        live.hold(inputs, "inputs")
        before = live.live
        function(*inputs)
    return (live.peaks[""] - before) / (ROWS * WIDTH)


def test_the_chunk_is_that_of_the_code() -> None:
    assert elementwise.CHUNK == elementwise_memory.CHUNK


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_temporaries_of_a_chunk_are_those_of_the_code(dtype: torch.dtype) -> None:
    low = dtype == torch.bfloat16
    gate_up, dh = torch.randn(ROWS, 2 * WIDTH).to(dtype), torch.randn(ROWS, WIDTH).to(dtype)
    assert temporaries(elementwise._silu_mul, gate_up) == elementwise_memory.ACTIVATION[low]
    for scale, counted in (
        (torch.rand(ROWS), elementwise_memory.BACKWARD),
        (None, elementwise_memory.BACKWARD_UNSCALED),
    ):
        found = temporaries(elementwise._silu_mul_backward, gate_up, dh, scale)
        assert found == pytest.approx(counted[low], rel=1e-3)
    y, position = torch.randn(2 * ROWS, WIDTH).to(dtype), torch.randperm(2 * ROWS).view(ROWS, 2)
    for weight in (torch.rand(ROWS, 2), None):
        found = temporaries(elementwise._combine, y, position, weight)
        assert found == elementwise_memory.COMBINE[low]


def test_a_chunk_is_gone_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "CHUNK", ROWS * WIDTH // 4)
    gate_up, dh = torch.randn(ROWS, 2 * WIDTH).bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()
    backward = elementwise.PLAIN["gptoss::silu_mul_backward"]
    found = temporaries(backward, gate_up, dh, torch.rand(ROWS))
    results = 3 * gate_up.element_size()
    assert found == pytest.approx(results + elementwise_memory.BACKWARD[True] / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("target", "dispatch", "compiled", "how"),
    [
        ("h200", "stacked", True, "compiled"),  # it takes the compiler that the spec asks for
        ("h200", "stacked", False, "plain"),
        ("h200", "grouped_mm", False, "compiled"),
        ("h200", "triton_grouped", False, "triton"),
        ("cpu", "stacked", True, "plain"),  # no op uses a compiler there
    ],
)
def test_the_plan_says_how_the_experts_elementwise_work_is_done(
    target: str, dispatch: str, compiled: bool, how: str
) -> None:
    spec = lite(
        model__moe__dispatch=dispatch,
        training__compile=compiled,
        training__precision="bf16" if target == "h200" else "fp32",
    )
    assert resolve(spec, lookup(target)).execution.elementwise == how


def test_only_plain_work_has_temporaries() -> None:
    # compiled norms and rotation leave the experts to make the peak
    spec = lite(model__moe__dispatch="stacked", training__compile=True)
    plan = resolve(spec, lookup("h200"))
    plain, compiled = (
        next(
            one.total
            for one in training_sums(
                spec, plan.execution.model_copy(update={"elementwise": how}), plan.parameters
            )
            if one.name.startswith("backward")
        )
        for how in ("plain", "compiled")
    )
    chunk = elementwise.CHUNK // 1536 * 1536 * elementwise_memory.BACKWARD[True]
    assert plain - compiled > chunk // 2
