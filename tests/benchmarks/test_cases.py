"""The benchmarks, as far as they run without a GPU: cases, failures, what is judged right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import layer_check, moe_layer, w1w3
from benchmarks.cases import CASES, Case, WrongResultError, attempt, chosen, parser, run_cases
from benchmarks.layer_check import Step, judge, reference
from gptoss_builder.model.moe import MoE
from gptoss_builder.plan.schema import Execution, Plan
from gptoss_builder.spec.schema import MoESpec

ROOT = Path(__file__).parents[2]
SCRIPTS = ("attention", "check", "curves", "long_run", "memory", "moe_layer", "train_step", "w1w3")


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{script}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _chosen(*arguments: str) -> list[Case]:
    command = parser("test")
    return chosen(command, command.parse_args(arguments))


def test_all_cases_or_one_of_ones_own():
    assert _chosen("--cases", "all") == list(CASES.values())
    assert _chosen("--cases", "one", "decode-1") == [CASES["one"], CASES["decode-1"]]
    assert _chosen() == [Case()]
    assert _chosen("--tokens", "64", "--load", "half") == [Case(tokens=64, load="half")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cases", "all", "--tokens", "64"],
        ["--cases", "none"],
        ["--tokens", "0"],
        ["--top-k", "9"],
        ["--out", "nowhere/x.json"],
        ["--out", "."],
    ],
)
def test_wrong_usage_is_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        _chosen(*arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("script", ["moe_layer", "train_step", "w1w3"])
def test_without_a_gpu_there_is_one_line_and_exit_code_2(script):
    done = _run(script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("this times kernels on a GPU, and no CUDA GPU")
    assert done.stderr.count("\n") == 1


def test_every_named_case_of_the_layer_is_one():
    assert set(moe_layer.WHAT_OF) <= set(CASES)
    assert set(moe_layer.WHOLE) <= {*CASES, Case().name}
    assert {how.up for how in moe_layer.RUNS} | {"liger"} == set(moe_layer.WHAT)


def test_a_case_that_fails_loses_no_other(tmp_path, capsys):
    seen = []

    def run(case, failures):
        seen.append(case.name)
        if case.name == "one":
            raise WrongResultError("h is off")
        attempt("a run", lambda: 1 // (case.name != "half"), failures)
        return {"dense_tflops": 1.0}

    out = tmp_path / "out.json"
    names = ["lite", "one", "half", "decode-1"]
    assert run_cases([CASES[name] for name in names], run, out) == 1
    assert seen == names
    written = json.loads(out.read_text())["cases"]
    assert [case["case"]["name"] for case in written] == names
    assert [list(case["failures"]) for case in written] == [[], ["the case"], ["a run"], []]
    assert written[3]["dense_tflops"] == 1.0
    assert "the case failed, WrongResultError: h is off" in capsys.readouterr().err
    assert run_cases([CASES["lite"]], run, None) == 0


def _step(backward: str = "save") -> tuple[MoE, Step, dict[str, torch.Tensor]]:
    case = Case(tokens=1000, experts=4, d_model=72, d_ff=24)
    execution = Execution.model_construct(
        up_products="loop",
        down_products="loop",
        backward_products="loop",
        backward=backward,
        elementwise="plain",
    )
    moe = MoESpec(experts=case.experts, top_k=case.top_k, d_ff=case.d_ff)
    sizes = type("Sizes", (), {"model": type("Model", (), {"d_model": case.d_model, "moe": moe})})
    layer = MoE(Plan.model_construct(spec=sizes, execution=execution, launch=None)).bfloat16()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.manual_seed(0)
    x, dy = layer_check.tokens(case, "cpu"), layer_check.tokens(case, "cpu")
    return layer, Step(layer, x, dy), reference(layer, x, dy)


@pytest.mark.parametrize("backward", ["recompute", "save"])
def test_a_right_layer_is_judged_right(backward):
    _, step, exact = _step(backward)
    errors = judge("loop", step, exact, balanced=True)
    assert set(errors) == {"y", "dx", "drouter", "dw13", "dw2"}
    assert 1e-4 < max(errors.values()) <= layer_check.LIMIT


@pytest.mark.parametrize("part", ["y", "dx", "drouter", "dw13", "dw2"])
def test_one_wrong_part_is_not_timed(part):
    _, step, exact = _step()
    exact[part] = exact[part] * 1.02
    with pytest.raises(WrongResultError, match=f"loop: {part} is off by"):
        judge("loop", step, exact, balanced=True)


def test_two_runs_that_differ_in_a_bit_are_not_timed(monkeypatch):
    layer, step, exact = _step()
    both = step.both

    def other() -> torch.Tensor:
        with torch.no_grad():
            layer.w2[0, 0, 0] *= 1.01
        return both()

    monkeypatch.setattr(step, "both", other)
    with pytest.raises(WrongResultError, match="differs between two runs"):
        judge("loop", step, exact, balanced=True)


def test_ratios_are_to_the_faster_loop_of_a_kind_and_to_the_dense_rate():
    how, times = moe_layer.How, moe_layer.Times
    ours = how("triton", "grouped_mm", "triton", "save")
    found = {
        how("loop", "loop", "plain", "save"): times("calls", 4.0, 15.0, 4.0, 1),
        how("loop", "loop", "compiled", "recompute"): times("calls", 4.0, 12.0, 4.0, 1),
        how("loop", "loop", "compiled", "save"): times("calls", 5.0, 10.0, 5.0, 1),
        ours: times("graph", 2.0, 5.0, 3.0, 2**30, whole=4.0),
    }
    cells = dict(zip(moe_layer.HEADER, moe_layer.table_rows(2e9, 345.0, found)[-1], strict=True))
    assert cells["fwd TFLOP/s"] == 1.0
    assert cells["fwd+bwd TFLOP/s"] == pytest.approx(1.2)
    assert cells["at a dense rate of 690"] == pytest.approx(2.4)
    assert (cells["× plain loop"], cells["× compiled loop"]) == (3.0, 2.0)
    assert cells["fwd+bwd TFLOP/s, whole layer compiled"] == pytest.approx(1.5)
    assert cells["peak GiB"] == 1.0
    alone = moe_layer.table_rows(2e9, 345.0, {ours: found[ours]})
    assert dict(zip(moe_layer.HEADER, alone[0], strict=True))["× compiled loop"] is None


def test_ratios_of_the_kernel_are_to_what_did_not_fail():
    times = {
        w1w3.PLAIN_LOOP: ("calls", 6.0, 6.0),
        w1w3.LOOP: ("calls", 4.0, 4.0),
        "Triton": ("graph", 2.0, 3.0),
    }
    cells = dict(zip(w1w3.HEADER, w1w3.row("Triton", times, 2e9, 4.0), strict=True))
    assert (cells["TFLOP/s"], cells["of the dense rate"], cells["× loop"]) == (1.0, 0.25, 2.0)
    assert cells["× grouped_mm, compiled"] is None
    assert (cells["timed"], cells["ms"], cells["ms by calls"]) == ("graph", 2.0, 3.0)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_starts_as_a_module(script):
    done = _run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_compiled_code_is_dropped_between_cases():
    """Or what is compiled for one number of rows would be compiled again for any."""
    shapes = []

    def backend(graph, inputs):
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        shapes.append([tuple(map(type, tensor.shape)) for tensor in tensors])
        return graph.forward

    compiled = torch.compile(torch.sin, backend=backend)

    def run(case, failures):
        for name in ("one", "two"):  # of the same size: compiled once
            attempt(name, lambda: compiled(torch.ones(case.tokens, 3)), failures)
        return {}

    assert run_cases([Case(tokens=5), Case(tokens=9)], run, None) == 0
    assert shapes == [[(int, int)]] * 2
