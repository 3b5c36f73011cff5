"""One step of a mixture-of-experts layer, and whether it is right: float64, and twice the same."""

# T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cases import Case, WrongResultError
from benchmarks.measure import relative_error
from gptoss_builder.model.moe import MoE

LIMIT = 8e-3
"""Largest relative error against float64: a bf16 result behind three rounded intermediates."""


class Step:
    """One layer with its tokens and the gradient that comes in."""

    def __init__(self, layer: nn.Module, x_TD: Tensor, dy_TD: Tensor) -> None:
        self.layer, self.x_TD, self.dy_TD = layer, x_TD.detach().clone().requires_grad_(), dy_TD

    def forward(self) -> None:
        """Forward alone, as in serving."""
        with torch.no_grad():
            self.layer(self.x_TD)

    def both(self) -> Tensor:
        """Forward and backward; gradients start from nothing. Returns y."""
        self.x_TD.grad = None
        self.layer.zero_grad()
        y_TD, aux = self.layer(self.x_TD)
        torch.autograd.backward([y_TD, aux], [self.dy_TD, torch.ones_like(aux)])
        y: Tensor = y_TD.detach()
        return y


def tokens(case: Case, device: str = "cuda") -> Tensor:
    """Random bf16 tokens whose first feature is 1, so that the router can lean on it."""
    x_TD = torch.randn(case.tokens, case.d_model, device=device, dtype=torch.bfloat16)
    x_TD[:, 0] = 1
    return x_TD


def reference(layer: MoE, x_TD: Tensor, dy_TD: Tensor) -> dict[str, Tensor]:
    """Values and gradients in float64, one expert at a time, by plain autograd."""
    router, w13, w2 = (
        p.detach().double().requires_grad_() for p in (layer.router, layer.w13, layer.w2)
    )
    x = x_TD.double().requires_grad_()
    probability_TE = (x @ router.T).softmax(1)
    weight_TK, choice_TK = probability_TE.topk(layer.top_k, dim=1)
    weight_TK = weight_TK / weight_TK.sum(1, keepdim=True)
    y_TD = torch.zeros_like(x)
    for expert in range(len(router)):
        token, choice = (choice_TK == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ w13[expert].T).chunk(2, dim=1)
        row = (F.silu(gate) * up) @ w2[expert].T
        y_TD = y_TD.index_add(0, token, row * weight_TK[token, choice, None])
    fraction_E = choice_TK.flatten().bincount(minlength=len(router)) / choice_TK.numel()
    aux = len(router) * (fraction_E * probability_TE.mean(0)).sum()
    torch.autograd.backward([y_TD, aux], [dy_TD.double(), torch.ones_like(aux)])
    found = {"y": y_TD, "dx": x.grad, "drouter": router.grad, "dw13": w13.grad, "dw2": w2.grad}
    return {name: tensor.detach() for name, tensor in found.items() if tensor is not None}


def judge(
    name: str, step: Step, exact: dict[str, Tensor], *, balanced: bool, same_bits: bool = True
) -> dict[str, float]:
    """Relative errors of one run.

    Raises:
        WrongResultError: one is too large, or two runs differ in a bit.
    """
    first, second = results(step), results(step)
    errors = {key: relative_error(first[key], exact[key]) for key in exact}
    for key, error in errors.items():
        # with few tokens or a saturated softmax the router's gradient all but cancels, and its
        # relative error says nothing
        judged = key != "drouter" or (balanced and len(step.x_TD) >= 1000)
        if judged and not error <= LIMIT:
            raise WrongResultError(
                f"{name}: {key} is off by {error:.2e}, at most {LIMIT:.0e} is right"
            )
        if same_bits and not torch.equal(first[key], second[key]):
            raise WrongResultError(f"{name}: {key} differs between two runs")
    return errors


def results(step: Step) -> dict[str, Tensor]:
    """Values and gradients of one step."""
    y_TD = step.both()
    gradients = {f"d{key}": step.layer.get_parameter(key).grad for key in ("router", "w13", "w2")}
    found = {"y": y_TD, "dx": step.x_TD.grad, **gradients}
    return {key: tensor.clone() for key, tensor in found.items() if tensor is not None}
