"""Time the W1/W3 kernel against its alternatives, after checking it against float64.

    python -m benchmarks.w1w3 --cases all --out w1w3.json
    python -m benchmarks.w1w3 --tokens 32768 --top-k 2 --experts 8 --d-model 768 --d-ff 1536

Times are of CUDA graphs, without what the host needs to launch: see `benchmarks.measure`. The loop
waits for the device, so it cannot be a graph; its time is that of calls. The last column has
the calls of all.
"""

# T tokens, R rows sorted by expert, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cases import Case, WrongResultError, attempt, chosen, parser, run_cases
from benchmarks.measure import (
    Dense,
    graph_milliseconds,
    milliseconds,
    relative_error,
    require_gpu,
    table,
)
from gptoss_builder.kernels.elementwise import silu_mul
from gptoss_builder.kernels.products import rows_product
from gptoss_builder.kernels.w1w3 import w1w3
from gptoss_builder.kernels.w1w3_reference import w1w3_reference
from gptoss_builder.plan.launch import choose, choose_sorted

LIMIT = {"h": 2e-3, "dx": 6e-3, "dw13": 6e-3}
"""Largest relative errors against float64: one rounding of the result, three in a gradient."""
GROUPED = "grouped_mm, compiled silu·mul"
PLAIN_LOOP, LOOP = "loop over the experts", "loop over the experts, compiled silu·mul"
HEADER = (
    "what", "timed", "ms", "TFLOP/s", "of the dense rate", "× grouped_mm, compiled", "× loop",
    "ms by calls",
)  # fmt: skip


class Inputs(NamedTuple):
    """Tokens, the same as rows sorted by expert, weights and routing."""

    x_TD: Tensor
    x_RD: Tensor
    w13_EFD: Tensor
    offsets_E: Tensor
    rows_R: Tensor


def main() -> int:
    """Check, time, print, and write JSON where `--out` says; 1 if anything failed."""
    command = parser(__doc__.splitlines()[0])
    options = command.parse_args()
    cases = chosen(command, options)
    require_gpu()
    return run_cases(cases, partial(run, options.repeat), options.out)


def run(repeat: int, case: Case, failures: dict[str, str]) -> dict[str, Any]:
    """One case: its tables are printed, its figures returned.

    Raises:
        WrongResultError: the kernel's values or gradients are not right.
    """
    torch.manual_seed(0)
    given = inputs(case)
    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    gathered = choose(arch, "bf16", case.d_model, case.d_ff, "auto")  # type: ignore[arg-type]  # a GPU of the table
    ordered = choose_sorted(arch, "bf16", case.d_model, case.d_ff)  # type: ignore[arg-type]  # a GPU of the table
    errors = compare(given.x_TD, given, given.rows_R, gathered)
    by_rows = compare(given.x_RD, given, None, ordered)
    errors |= {f"sorted {name}": error for name, error in by_rows.items()}
    dense = Dense(case.rows, case.d_model, 2 * case.d_ff, repeat=repeat)
    times: dict[str, tuple[str, float, float]] = {}
    for name, work in runs(given, gathered, ordered).items():
        found = attempt(name, partial(measure, name, work, repeat), failures)
        if found is not None:
            times[name] = found
    flops = 4.0 * case.rows * case.d_model * case.d_ff
    rate = dense.again()
    rows = [row(name, times, flops, rate) for name in times]
    title = f"W1/W3 forward, {case.title}, {flops / 1e12:.3f} TFLOP"
    print(table(title, HEADER, rows))
    print(f"\n{dense}")
    print(table("Relative error against float64", ("what", "error"), list(errors.items())))
    figures = [dict(zip(HEADER, cells, strict=True)) for cells in rows]
    return {"title": title, "dense_tflops": dense.rates, "runs": figures, "errors": errors}


def runs(given: Inputs, gathered: Any, ordered: Any) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    x_TD, x_RD, w13_EFD, offsets_E, rows_R = given
    w_EDF = w13_EFD.transpose(1, 2)

    def grouped(x: Tensor) -> Tensor:
        out: Tensor = functional.grouped_mm(x, w_EDF, offs=offsets_E)
        return out

    return {
        PLAIN_LOOP: lambda: w1w3(x_RD, w13_EFD, offsets_E, implementation="loop"),
        LOOP: lambda: silu_mul(rows_product(x_RD, w_EDF, offsets_E, "loop"), True),
        "grouped_mm alone": lambda: grouped(x_RD),
        GROUPED: lambda: silu_mul(grouped(x_RD), True),
        "gather, grouped_mm, compiled silu·mul": lambda: silu_mul(grouped(x_TD[rows_R]), True),
        "Triton, sorted rows": lambda: w1w3(
            x_RD, w13_EFD, offsets_E, implementation="triton", launch=ordered
        ),
        "Triton, rows gathered inside": lambda: w1w3(
            x_TD, w13_EFD, offsets_E, implementation="triton", launch=gathered, rows_R=rows_R
        ),
    }


def measure(name: str, work: Callable[[], Any], repeat: int) -> tuple[str, float, float]:
    """How it was timed, milliseconds, and milliseconds by calls."""
    with torch.no_grad():
        calls = milliseconds(work, repeat=repeat)
        if name in (PLAIN_LOOP, LOOP):  # they wait for the device
            return "calls", calls, calls
        return "graph", graph_milliseconds(work, repeat=repeat), calls


def row(
    name: str, times: dict[str, tuple[str, float, float]], flops: float, dense: float
) -> tuple[object, ...]:
    """One row under `HEADER`; `× loop` is to the faster loop, a ratio to what failed is None."""
    how, taken, calls = times[name]
    rate = flops / taken / 1e9
    loops = (PLAIN_LOOP, LOOP)
    bases = [[times[one][1] for one in ones if one in times] for ones in ((GROUPED,), loops)]
    ratios = [min(base) / taken if base else None for base in bases]
    return (name, how, taken, rate, rate / dense, *ratios, calls)


def inputs(case: Case) -> Inputs:
    """Random tokens, weights and routing."""
    x_TD = torch.randn(case.tokens, case.d_model, device="cuda", dtype=torch.bfloat16)
    w_shape = (case.experts, 2 * case.d_ff, case.d_model)
    w13_EFD = torch.randn(w_shape, device="cuda", dtype=torch.bfloat16) / case.d_model**0.5
    score_TE = torch.rand(case.tokens, case.experts, device="cuda")
    if case.load == "one":
        score_TE = torch.arange(case.experts, device="cuda").float().expand(case.tokens, -1)
    elif case.load == "half":
        score_TE[:, ::2] -= 1
    choice_TK = score_TE.topk(case.top_k, dim=1).indices
    sorted_R, order_R = choice_TK.flatten().sort(stable=True)
    expert_E = torch.arange(case.experts, device="cuda")
    offsets_E = torch.searchsorted(sorted_R, expert_E, right=True, out_int32=True)
    rows_R = order_R // case.top_k
    return Inputs(x_TD, x_TD[rows_R], w13_EFD, offsets_E, rows_R)


def compare(
    tokens_TD: Tensor, given: Inputs, rows_R: Tensor | None, launch: Any
) -> dict[str, float]:
    """Relative errors of the kernel's values and gradients.

    Raises:
        WrongResultError: one is too large.
    """
    x, w13 = tokens_TD.clone().requires_grad_(), given.w13_EFD.clone().requires_grad_()
    h_RF = w1w3(
        x, w13, given.offsets_E, implementation="triton", launch=launch, rows_R=rows_R,
        products="grouped_mm",
    )  # fmt: skip
    dh_RF = torch.randn_like(h_RF)
    ours = (h_RF, *torch.autograd.grad(h_RF, (x, w13), dh_RF))
    x64, w64 = (leaf.detach().double().requires_grad_() for leaf in (x, w13))
    exact_RF = w1w3_reference(x64, w64, given.offsets_E, rows_R)
    exact = (exact_RF, *torch.autograd.grad(exact_RF, (x64, w64), dh_RF.double()))
    errors = {
        name: relative_error(actual, right)
        for name, actual, right in zip(LIMIT, ours, exact, strict=True)
    }
    for name, error in errors.items():
        if not error <= LIMIT[name]:
            raise WrongResultError(
                f"{name} is off by {error:.2e}, at most {LIMIT[name]:.0e} is right"
            )
    return errors


if __name__ == "__main__":
    sys.exit(main())
