"""Time one mixture-of-experts layer, forward and backward, after comparing it with float64.

    python -m benchmarks.moe_layer --cases all --out moe_layer.json
    python -m benchmarks.moe_layer --tokens 32768 --top-k 2 --experts 8 --d-model 768 --d-ff 1536

A layer is timed as a CUDA graph, without what the host needs to launch it: a training step hides
that behind the kernels before. The loop waits for the device, so it cannot be a graph, nor hide
anything: its time is that of calls, as is Liger's. A column has the forward of all by calls.
"""

# T tokens, D model width, E experts, F hidden width of an expert

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from benchmarks.cases import Case, attempt, chosen, parser, run_cases
from benchmarks.layer_check import Step, judge, reference, tokens
from benchmarks.liger import LigerMoE, liger_name
from benchmarks.measure import (
    Dense,
    graph_milliseconds,
    milliseconds,
    peak_bytes,
    require_gpu,
    table,
)
from gptoss_builder.model.moe import MoE
from gptoss_builder.plan.launch import choose
from gptoss_builder.plan.schema import Execution, Plan
from gptoss_builder.spec.schema import MoESpec


class How(NamedTuple):
    """What computes W1/W3, the other products and the elementwise work; what is kept."""

    up: str
    products: str
    elementwise: str
    backward: str

    @property
    def name(self) -> str:
        """The run in one line."""
        return f"{self.up}, {self.elementwise}, {self.backward}"


RUNS = tuple(
    How(*how, backward)
    for how in (
        ("loop", "loop", "plain"),
        ("loop", "loop", "compiled"),
        ("grouped_mm", "grouped_mm", "compiled"),
        ("triton", "grouped_mm", "triton"),
    )
    for backward in ("recompute", "save")
)
WHAT = ("loop", "grouped_mm", "triton", "liger")
WHAT_OF = {
    "fine": ("loop", "triton"),
    "one": ("triton",),
    "half": ("triton",),
    "decode-64": ("loop", "grouped_mm", "triton"),
    "decode-1": ("loop", "grouped_mm", "triton"),
}
"""What is run of a named case; else everything."""
WHOLE = ("own", "lite", "fine")
"""Cases in which the whole layer is compiled and timed too."""
REFERENCE_RATE = 690.0
"""TFLOP/s of a dense product to which rates of runs on faster and slower cards are scaled."""
HEADER = (
    "W1/W3", "elementwise", "backward", "timed", "fwd ms", "fwd+bwd ms",
    "fwd TFLOP/s", "fwd+bwd TFLOP/s",
    "at a dense rate of 690", "× plain loop", "× compiled loop",
    "fwd+bwd TFLOP/s, whole layer compiled", "fwd ms by calls", "peak GiB",
)  # fmt: skip


class Times(NamedTuple):
    """Milliseconds of one run, and its memory."""

    how: str
    forward: float
    both: float
    calls: float
    """The forward by calls."""
    peak_bytes: int
    whole: float | None = None
    """Forward and backward of the whole layer compiled; None if it was not."""


def main() -> int:
    """Check, time, print, and write JSON where `--out` says; 1 if anything failed."""
    command = parser(__doc__.splitlines()[0])
    command.add_argument(
        "--eager", action="store_true", help="do not compile and time the whole layer as well"
    )
    command.add_argument(
        "--only", nargs="+", choices=WHAT, help="default: what the page needs of a case"
    )
    options = command.parse_args()
    cases = chosen(command, options)
    require_gpu()
    return run_cases(cases, partial(run, options), options.out)


def run(options: argparse.Namespace, case: Case, failures: dict[str, str]) -> dict[str, Any]:
    """One case: its tables are printed, its figures returned."""
    torch.manual_seed(0)
    only = options.only or WHAT_OF.get(case.name, WHAT)
    whole = case.name in WHOLE and not options.eager
    x_TD, dy_TD = tokens(case), tokens(case)
    exact = reference(build(case, RUNS[0]), x_TD, dy_TD)
    dense = Dense(case.rows, case.d_model, 3 * case.d_ff, repeat=options.repeat)
    found: dict[How, Times] = {}
    errors: dict[str, dict[str, float]] = {}

    def one(how: How) -> None:
        step = Step(build(case, how), x_TD, dy_TD)
        errors[how.name] = judge(how.name, step, exact, balanced=case.load == "balanced")
        times = found[how] = measure(step, options.repeat, waits=how.up == "loop")
        if whole and how.up == "triton":
            compiled = whole_milliseconds(step, options.repeat)
            found[how] = times._replace(whole=compiled)

    def liger(name: str) -> None:
        step = Step(LigerMoE(build(case, RUNS[0])), x_TD, dy_TD)
        errors[name] = judge(name, step, exact, balanced=False, same_bits=False)
        found[How(name, "its own", "its own", "save")] = measure(step, options.repeat, waits=True)

    for how in RUNS:
        if how.up in only:
            attempt(how.name, partial(one, how), failures)
    name = liger_name()
    left_out: dict[str, str] = {}  # a Liger that does not fit these versions is no failure of ours
    if "liger" in only and name is not None:
        attempt(name, partial(liger, name), left_out)
    return report(case, dense, found, errors) | {"left_out": left_out}


def report(
    case: Case,
    dense: Dense,
    found: dict[How, Times],
    errors: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """Print a case's tables; returns its figures."""
    rows = table_rows(flops(case), dense.again(), found)
    title = f"MoE layer, {case.title}, {flops(case) / 1e12:.3f} TFLOP forward"
    print(table(title, HEADER, rows))
    print(f"\n{dense}")
    kinds = list(next(iter(errors.values()), {}))
    error_rows = [(name, *values.values()) for name, values in errors.items()]
    print(table("Relative error against float64", ("what", *kinds), error_rows))
    figures = [dict(zip(HEADER, cells, strict=True)) for cells in rows]
    return {"title": title, "dense_tflops": dense.rates, "runs": figures, "errors": errors}


def table_rows(flops: float, dense: float, found: dict[How, Times]) -> list[tuple[object, ...]]:
    """Rows under `HEADER`; a ratio is of forward and backward, to the faster of such loops."""
    loops = {
        kind: min(
            (t.both for how, t in found.items() if (how.up, how.elementwise) == ("loop", kind)),
            default=None,
        )
        for kind in ("plain", "compiled")
    }
    rows: list[tuple[object, ...]] = []
    for how, times in found.items():
        both = 3 * flops / times.both / 1e9
        rows.append(
            (
                how.up, how.elementwise, how.backward, times.how, times.forward, times.both,
                flops / times.forward / 1e9, both, both * REFERENCE_RATE / dense,
                *(None if loop is None else loop / times.both for loop in loops.values()),
                None if times.whole is None else 3 * flops / times.whole / 1e9,
                times.calls, times.peak_bytes / 2**30,
            )
        )  # fmt: skip
    return rows


def flops(case: Case) -> float:
    """FLOPs of the experts' products in one forward."""
    return 6.0 * case.rows * case.d_model * case.d_ff


def build(case: Case, how: How) -> MoE:
    """A layer with bf16 weights, the same for every implementation."""
    arch = "sm{}{}".format(*torch.cuda.get_device_capability())
    execution = Execution.model_construct(
        up_products=how.up,
        down_products=how.products,
        backward_products=how.products,
        backward=how.backward,
        elementwise=how.elementwise,
    )
    launch = choose(arch, "bf16", case.d_model, case.d_ff, "auto")  # type: ignore[arg-type]  # a GPU of the table
    moe = MoESpec(experts=case.experts, top_k=case.top_k, d_ff=case.d_ff)
    sizes = type("Sizes", (), {"model": type("Model", (), {"d_model": case.d_model, "moe": moe})})
    with torch.device("cuda"):
        plan = Plan.model_construct(spec=sizes, execution=execution, launch=launch)
        layer = MoE(plan).bfloat16()
    generator = torch.Generator(device="cuda").manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=case.d_model**-0.5, generator=generator)
    if case.load == "one":
        layer.router.data[:, 0] = 100.0 * torch.arange(case.experts, device="cuda")
    elif case.load == "half":
        layer.router.data[::2, 0] -= 100.0
    return layer


def measure(step: Step, repeat: int, *, waits: bool) -> Times:
    """Time a layer that was judged; one that `waits` for the device is timed by calls."""
    calls = milliseconds(step.forward, repeat=repeat)
    if waits:
        both = milliseconds(step.both, repeat=repeat)
        return Times("calls", calls, both, calls, peak_bytes(step.both))
    forward = graph_milliseconds(step.forward, repeat=repeat)
    both = graph_milliseconds(step.both, repeat=repeat)
    return Times("graph", forward, both, calls, peak_bytes(step.both))


def whole_milliseconds(step: Step, repeat: int) -> float:
    """Forward and backward of the layer compiled as one."""
    layer = cast(nn.Module, torch.compile(step.layer, fullgraph=True))
    return graph_milliseconds(Step(layer, step.x_TD, step.dy_TD).both, repeat=repeat)


if __name__ == "__main__":
    sys.exit(main())
