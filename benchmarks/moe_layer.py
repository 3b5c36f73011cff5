"""Time one mixture-of-experts layer, forward and backward, after comparing it with float64.

python benchmarks/moe_layer.py --tokens 32768 --top-k 2 --experts 8 --d-model 768 --d-ff 1536
"""

# T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import argparse
import sys
from typing import cast

import torch
from liger import LIGER_FAILURES, LigerMoE, liger_name
from measure import (
    graph_milliseconds,
    machine,
    milliseconds,
    peak_bytes,
    relative_error,
    require_gpu,
    table,
    write_json,
)
from torch import Tensor
from w1w3 import parser

from gptoss_builder.model.moe import MoE
from gptoss_builder.plan.launch import choose
from gptoss_builder.plan.schema import Execution, Plan
from gptoss_builder.spec.schema import MoESpec

RUNS = (
    ("loop", "loop", "recompute"),
    ("loop", "loop", "save"),
    ("grouped_mm", "grouped_mm", "recompute"),
    ("grouped_mm", "grouped_mm", "save"),
    ("triton", "grouped_mm", "recompute"),
    ("triton", "grouped_mm", "save"),
)
"""What computes W1/W3, what the other products, and what the backward does."""
HEADER = (
    "W1/W3", "backward", "timed", "fwd ms", "fwd+bwd ms", "fwd TFLOP/s", "fwd+bwd TFLOP/s",
    "fwd+bwd, whole layer compiled", "peak GiB",
)  # fmt: skip
LIMIT = 8e-3
"""Largest relative error against float64: a bf16 result behind three rounded intermediates."""


class Sizes:
    """The part of a spec that the layer reads."""

    def __init__(self, args: argparse.Namespace) -> None:
        moe = MoESpec(experts=args.experts, top_k=args.top_k, d_ff=args.d_ff)
        self.model = type("Model", (), {"d_model": args.d_model, "moe": moe})


def main() -> None:
    """Check, time, print, and write JSON where `--out` says."""
    args = arguments()
    require_gpu()
    x_TD, dy_TD = tokens(args), tokens(args)
    exact = reference(build(args, *RUNS[0]), x_TD, dy_TD)
    rows: list[tuple[object, ...]] = []
    errors: dict[str, dict[str, float]] = {}
    for run in RUNS:
        up, _, backward = run
        if up in args.only:
            step = Step(build(args, *run), x_TD, dy_TD)
            name = f"{up}, {backward}"
            errors[name] = judge(name, step, exact, balanced=args.load == "balanced")
            waits = up == "loop"
            whole = up == "triton" and not args.eager
            rows.append((up, backward, *measure(step, args, waits=waits, whole=whole)))
    liger = liger_name()
    if "liger" in args.only and liger:
        try:
            step = Step(LigerMoE(build(args, *RUNS[0])), x_TD, dy_TD)
            errors[liger] = judge(liger, step, exact, balanced=False, same_bits=False)
            rows.append((liger, "save", *measure(step, args, waits=True, whole=False)))
        except (*LIGER_FAILURES, SystemExit) as error:
            print(f"{liger} is left out: {error}")
    title = (
        f"MoE layer, {args.tokens} tokens, top-{args.top_k} of {args.experts}, "
        f"{args.d_model} → {args.d_ff}, {args.load}, {flops(args) / 1e12:.3f} TFLOP forward, bf16"
    )
    print(table(title, HEADER, rows))
    error_rows = [(name, *found.values()) for name, found in errors.items()]
    print(table("Relative error against float64", ("what", *exact), error_rows))
    if args.out:
        runs = [dict(zip(HEADER, row, strict=True)) for row in rows]
        write_json(args.out, {"case": title, "runs": runs, "errors": errors, "machine": machine()})


def flops(args: argparse.Namespace) -> float:
    """FLOPs of the experts' products in one forward."""
    return 6.0 * args.tokens * args.top_k * args.d_model * args.d_ff


def arguments() -> argparse.Namespace:
    """Read the command line."""
    command = parser()
    command.description = __doc__.splitlines()[0]
    every = [*dict.fromkeys(up for up, _, _ in RUNS), "liger"]
    command.add_argument(
        "--eager", action="store_true", help="do not compile and time the whole layer as well"
    )
    command.add_argument("--only", nargs="+", choices=every, default=every, metavar="WHAT")
    return command.parse_args()


class Step:
    """One layer with its tokens and the gradient that comes in."""

    def __init__(self, layer: torch.nn.Module, x_TD: Tensor, dy_TD: Tensor) -> None:
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
        return y_TD.detach()


def tokens(args: argparse.Namespace) -> Tensor:
    """Random tokens whose first feature is 1, so that the router can lean on it."""
    x_TD = torch.randn(args.tokens, args.d_model, device="cuda", dtype=torch.bfloat16)
    x_TD[:, 0] = 1
    return x_TD


def build(args: argparse.Namespace, up: str, products: str, backward: str) -> MoE:
    """A layer with bf16 weights, the same for every implementation."""
    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    execution = Execution.model_construct(
        up_products=up,
        down_products=products,
        backward_products=products,
        backward=backward,
        elementwise="compiled",
    )
    launch = choose(arch, "bf16", args.d_model, args.d_ff, "auto")  # type: ignore[arg-type]  # a GPU of the table
    with torch.device("cuda"):
        plan = Plan.model_construct(spec=Sizes(args), execution=execution, launch=launch)
        layer = MoE(plan).bfloat16()
    generator = torch.Generator(device="cuda").manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=args.d_model**-0.5, generator=generator)
    if args.load == "one":
        layer.router.data[:, 0] = 100.0 * torch.arange(args.experts, device="cuda")
    elif args.load == "half":
        layer.router.data[::2, 0] -= 100.0
    return layer


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
        row = (torch.nn.functional.silu(gate) * up) @ w2[expert].T
        y_TD = y_TD.index_add(0, token, row * weight_TK[token, choice, None])
    fraction_E = choice_TK.flatten().bincount(minlength=len(router)) / choice_TK.numel()
    aux = len(router) * (fraction_E * probability_TE.mean(0)).sum()
    torch.autograd.backward([y_TD, aux], [dy_TD.double(), torch.ones_like(aux)])
    found = {"y": y_TD, "dx": x.grad, "drouter": router.grad, "dw13": w13.grad, "dw2": w2.grad}
    return {name: tensor.detach() for name, tensor in found.items() if tensor is not None}


def judge(
    name: str, step: Step, exact: dict[str, Tensor], *, balanced: bool, same_bits: bool = True
) -> dict[str, float]:
    """Relative errors of one run; leaves when one is too large or two runs differ in a bit."""
    layer = step.layer

    def run() -> dict[str, Tensor]:
        y_TD = step.both()
        names = ("router", "w13", "w2")
        gradients = {f"d{key}": layer.get_parameter(key).grad for key in names}
        found = {"y": y_TD, "dx": step.x_TD.grad, **gradients}
        return {key: tensor.clone() for key, tensor in found.items() if tensor is not None}

    first, second = run(), run()
    errors = {key: relative_error(first[key], exact[key]) for key in exact}
    for key, error in errors.items():
        # with few tokens or a saturated softmax the router's gradient all but cancels, and its
        # relative error says nothing
        judged = key != "drouter" or (balanced and len(step.x_TD) >= 1000)
        if judged and not error <= LIMIT:
            sys.exit(f"{name}: {key} is off by {error:.2e}, at most {LIMIT:.0e} is right")
        if same_bits and not torch.equal(first[key], second[key]):
            sys.exit(f"{name}: {key} differs between two runs")
    return errors


def measure(
    step: Step, args: argparse.Namespace, *, waits: bool, whole: bool
) -> tuple[object, ...]:
    """The columns of `HEADER` after the first two; `whole` compiles the layer too (else None).

    A layer is timed as a CUDA graph, without what the host needs to launch it: a training step
    hides that behind the kernels before. One that waits for the device cannot be a graph, nor
    hide anything.
    """
    time = milliseconds if waits else graph_milliseconds
    forward, both = time(step.forward, repeat=args.repeat), time(step.both, repeat=args.repeat)
    compiled = None
    if whole:
        layer = cast(torch.nn.Module, torch.compile(step.layer, fullgraph=True))
        compiled_step = Step(layer, step.x_TD, step.dy_TD)
        compiled = 3 * flops(args) / time(compiled_step.both, repeat=args.repeat) / 1e9
        torch._dynamo.reset()
    rates = (flops(args) / forward / 1e9, 3 * flops(args) / both / 1e9, compiled)
    how = "calls" if waits else "graph"
    return (how, forward, both, *rates, peak_bytes(step.both) / 2**30)


if __name__ == "__main__":
    main()
