"""Time the W1/W3 op against what else computes it, after comparing it with float64.

python benchmarks/w1w3.py --tokens 32768 --top-k 2 --experts 8 --d-model 768 --d-ff 1536
"""

# R rows sorted by expert, T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import machine, milliseconds, relative_error, require_gpu, table, write_json
from torch import Tensor
from torch.nn import functional

from gptoss_builder.kernels.elementwise import silu_mul
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from gptoss_builder.plan.launch import choose, choose_sorted

LIMIT = {"h": 2e-3, "dx": 6e-3, "dw13": 6e-3}
"""Largest relative errors against float64: one rounding of the result, three in a gradient."""


def main() -> None:
    """Check, time, print, and write JSON where `--out` says."""
    args = parser().parse_args()
    require_gpu()
    torch.manual_seed(0)
    x_TD, w13_EFD, offsets_E, rows_R = inputs(args)
    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    gathered = choose(arch, "bf16", args.d_model, args.d_ff, "auto")  # type: ignore[arg-type]  # a GPU of the table
    ordered = choose_sorted(arch, "bf16", args.d_model, args.d_ff)  # type: ignore[arg-type]  # a GPU of the table
    x_RD = x_TD[rows_R]
    errors = compare(x_TD, w13_EFD, offsets_E, rows_R, gathered)
    errors |= {
        f"sorted {name}": error
        for name, error in compare(x_RD, w13_EFD, offsets_E, None, ordered).items()
    }
    w_DF = w13_EFD[0].T
    runs: dict[str, Callable[[], Any]] = {
        "dense cuBLAS product of the same FLOPs": lambda: x_RD @ w_DF,
        "loop over the experts": lambda: w1w3(x_RD, w13_EFD, offsets_E, implementation="loop"),
        "grouped_mm alone": lambda: grouped(x_RD, w13_EFD, offsets_E),
        "grouped_mm, compiled silu·mul": lambda: silu_mul(grouped(x_RD, w13_EFD, offsets_E), True),
        "gather, grouped_mm, compiled silu·mul": lambda: silu_mul(
            grouped(x_TD[rows_R], w13_EFD, offsets_E), True
        ),
        "Triton, sorted rows": lambda: w1w3(
            x_RD, w13_EFD, offsets_E, implementation="triton", launch=ordered
        ),
        "Triton, rows gathered inside": lambda: w1w3(
            x_TD, w13_EFD, offsets_E, implementation="triton", launch=gathered, rows_R=rows_R
        ),
    }
    flops = 4 * rows_R.numel() * args.d_model * args.d_ff
    with torch.no_grad():
        rates = {
            name: flops / milliseconds(run, repeat=args.repeat) / 1e9 for name, run in runs.items()
        }
    base = rates["grouped_mm, compiled silu·mul"]
    title = (
        f"W1/W3 forward, {args.tokens} tokens, top-{args.top_k} of {args.experts}, "
        f"{args.d_model} → {args.d_ff}, {args.load}, {flops / 1e12:.3f} TFLOP, bf16"
    )
    rows = [(name, rate, rate / base) for name, rate in rates.items()]
    print(table(title, ("what", "TFLOP/s", "to grouped_mm, compiled"), rows))
    print(table("Relative error against float64", ("what", "error"), list(errors.items())))
    if args.out:
        result = {"case": title, "tflops": rates, "errors": errors, "machine": machine()}
        write_json(args.out, result)


def parser() -> argparse.ArgumentParser:
    """The command line: sizes, how the tokens are spread, and how long to measure."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("tokens", 32768), ("top-k", 2), ("experts", 8), ("d-model", 768), ("d-ff", 1536)
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--load", choices=("balanced", "one", "half"), default="balanced")
    parser.add_argument("--repeat", type=int, default=200, help="milliseconds of a measurement")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    return parser


def inputs(args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random tokens, weights and routing; `one`: the same K experts for all; `half`: E/2 empty."""
    shape = (args.tokens, args.d_model)
    x_TD = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w_shape = (args.experts, 2 * args.d_ff, args.d_model)
    w13_EFD = torch.randn(w_shape, device="cuda", dtype=torch.bfloat16) / args.d_model**0.5
    score_TE = torch.rand(args.tokens, args.experts, device="cuda")
    if args.load == "one":
        score_TE = torch.arange(args.experts, device="cuda").float().expand(args.tokens, -1)
    elif args.load == "half":
        score_TE[:, ::2] -= 1
    choice_TK = score_TE.topk(args.top_k, dim=1).indices
    sorted_R, order_R = choice_TK.flatten().sort(stable=True)
    expert_E = torch.arange(args.experts, device="cuda")
    offsets_E = torch.searchsorted(sorted_R, expert_E, right=True, out_int32=True)
    return x_TD, w13_EFD, offsets_E, order_R // args.top_k


def grouped(x_RD: Tensor, w13_EFD: Tensor, offsets_E: Tensor) -> Tensor:
    """PyTorch's own grouped product."""
    out: Tensor = functional.grouped_mm(x_RD, w13_EFD.transpose(1, 2), offs=offsets_E)
    return out


def compare(
    x_TD: Tensor, w13_EFD: Tensor, offsets_E: Tensor, rows_R: Tensor | None, launch: Any
) -> dict[str, float]:
    """Relative errors of the kernel's values and gradients; leaves when one is too large."""
    x, w13 = x_TD.clone().requires_grad_(), w13_EFD.clone().requires_grad_()
    h_RF = w1w3(
        x, w13, offsets_E, implementation="triton", launch=launch, rows_R=rows_R,
        products="grouped_mm",
    )  # fmt: skip
    dh_RF = torch.randn_like(h_RF)
    h_RF.backward(dh_RF)
    x64, w64 = x_TD.double().requires_grad_(), w13_EFD.double().requires_grad_()
    exact_RF = w1w3_reference(x64, w64, offsets_E, rows_R)
    exact_RF.backward(dh_RF.double())
    pairs = {"h": (h_RF, exact_RF), "dx": (x.grad, x64.grad), "dw13": (w13.grad, w64.grad)}
    errors = {}
    for name, (actual, exact) in pairs.items():
        assert actual is not None
        assert exact is not None
        errors[name] = relative_error(actual, exact)
        if not errors[name] <= LIMIT[name]:
            sys.exit(f"{name} is off by {errors[name]:.2e}, at most {LIMIT[name]:.0e} is right")
    return errors


if __name__ == "__main__":
    main()
