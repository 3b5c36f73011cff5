"""The block of experts: what does not fit is refused in words, and what fits runs."""

from __future__ import annotations

import pytest
import torch

from gptoss_builder.errors import InputError
from gptoss_builder.kernels.experts import How, Routing, experts
from gptoss_builder.model.router import sort_by_expert
from gptoss_builder.spec.schema import HARD_CAP

TOKENS, EXPERTS, D_MODEL, D_FF = 5, 3, 8, 16
LOOP = How("loop", "loop", "loop", "recompute", "plain", ())
DENSE = LOOP._replace(up="dense", down="dense", products="dense")


def block(**change: object) -> dict[str, object]:
    weight, choice = torch.rand(TOKENS, EXPERTS).topk(2)
    return {
        "x_TD": torch.randn(TOKENS, D_MODEL),
        "w13_EFD": torch.randn(EXPERTS, 2 * D_FF, D_MODEL),
        "w2_EDF": torch.randn(EXPERTS, D_MODEL, D_FF),
        "routing": sort_by_expert(choice, weight, EXPERTS),
        "how": LOOP,
        **change,
    }


def routing(**change: object) -> Routing:
    made = block()["routing"]
    assert isinstance(made, Routing)
    return made._replace(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2_EDF": torch.zeros(EXPERTS + 1, D_MODEL, D_FF)}, "w2"),
        ({"w2_EDF": torch.zeros(EXPERTS, D_FF, D_MODEL)}, "w2"),
        ({"w2_EDF": torch.zeros(EXPERTS, D_MODEL, D_FF, dtype=torch.bfloat16)}, "same dtype"),
        ({"routing": routing(position_TK=None)}, "one position"),
        ({"routing": routing(rows_R=None)}, "one position"),
        ({"routing": routing(position_TK=torch.zeros(TOKENS, 3, dtype=torch.int64))}, "position"),
        ({"routing": routing(weight_TK=torch.zeros(TOKENS, 3))}, "weights"),
        ({"routing": routing(weight_TK=torch.zeros(TOKENS, 2).bfloat16())}, "float32"),
        ({"how": DENSE}, "of one expert, and there are 3"),
        ({"how": LOOP._replace(down="fast")}, "unknown"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change, message):
    with pytest.raises(InputError, match=message):
        experts(**block(**change))
    assert experts(**block()).shape == (TOKENS, D_MODEL)


@pytest.mark.parametrize("elementwise", ["plain", "triton"])
def test_shared_experts_together_may_be_wider_than_one_expert(elementwise, device):
    """A spec with d_ff 8,192 and shared experts is legal; their block is of all of them."""
    width = HARD_CAP + 8
    x = torch.randn(TOKENS, D_MODEL, device=device, requires_grad=True)
    w13 = torch.randn(1, 2 * width, D_MODEL, device=device) / 3
    w2 = torch.randn(1, D_MODEL, width, device=device) / 90
    every = Routing(torch.tensor([TOKENS], dtype=torch.int32, device=device), None, None, None)
    y = experts(x, w13, w2, every, DENSE._replace(elementwise=elementwise))
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    exact_x = x.detach().double().requires_grad_()
    gate, up = (exact_x @ w13[0].double().T).chunk(2, dim=1)
    exact = (torch.nn.functional.silu(gate) * up) @ w2[0].double().T
    (exact_dx,) = torch.autograd.grad(exact.square().sum(), exact_x)
    assert torch.allclose(y.double(), exact, rtol=1e-4, atol=1e-5)
    assert torch.linalg.vector_norm(dx - exact_dx) <= 1e-5 * torch.linalg.vector_norm(exact_dx)
