"""A kernel that does not compile or launch, injected: the commands stop with an error in words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from gptoss_builder.cli import build as build_cli
from gptoss_builder.cli import train as train_cli
from gptoss_builder.kernels import w1w3_triton
from gptoss_builder.kernels.launches import launches
from gptoss_builder.plan.launch import SEED
from gptoss_builder.plan.schema import Plan
from tests.train.runs import lines, small_plan

SPECS = Path(__file__).parents[2] / "specs"
FAILURES = [
    OutOfResources(300_000, 232_448, "shared memory"),
    CompilationError("def kernel(): ...", None, "at 1:1: no such layout"),
    PTXASError("ptxas died with error code 255"),
    RuntimeError("Triton Error [CUDA]: invalid argument"),
    subprocess.CalledProcessError(1, ["gcc", "main.c"]),
    PermissionError(13, "Permission denied", "/root/.triton/cache"),
]


class Failing:
    """Stands for the kernel: works `after` times, then raises."""

    def __init__(self, kernel: object, error: Exception, after: int) -> None:
        self.kernel, self.error, self.left = kernel, error, after

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: object, **options: object) -> None:
            if self.left == 0:
                raise self.error
            self.left -= 1
            self.kernel[grid](*arguments, **options)  # type: ignore[index]  # a kernel of Triton

        return run


def triton_plan(folder: Path) -> Plan:
    """A plan whose experts run by the kernel, on the interpreter where there is no GPU."""
    plan = small_plan(folder, training={"steps": 2, "compile": False})
    changed = {"up_products": "triton", "elementwise": "triton"}
    execution = plan.execution.model_copy(update=changed)
    return plan.model_copy(update={"execution": execution, "launch": SEED})


@pytest.mark.parametrize("after", [0, 1, 2], ids=["first layer", "second layer", "backward"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_training_stops_before_its_first_step_and_says_what_to_set(
    error, after, tmp_path, monkeypatch, capsys
):
    plan = triton_plan(tmp_path)
    monkeypatch.setattr(train_cli, "read_build", lambda _: plan)
    failing = Failing(w1w3_triton.w1w3_kernel, error, after)
    monkeypatch.setattr(w1w3_triton, "w1w3_kernel", failing)
    before = launches.copy()
    run_dir = tmp_path / "run"
    assert train_cli.main([str(tmp_path), "--run", str(run_dir), "--sample", "0"]) == 1
    told = capsys.readouterr().err
    assert "the W1/W3 kernel (16×32×32" in told
    assert str(error) in told
    assert "model.moe.dispatch: stacked" in told
    assert "Traceback" not in told
    ran = launches - before
    assert (ran["up:loop"], ran["up:grouped_mm"]) == (0, 0)
    assert not (run_dir / "metrics.jsonl").exists() or lines(run_dir) == []
    assert not list(run_dir.glob("checkpoints/step-*"))


def test_a_failing_backward_kernel_stops_training_too(tmp_path, monkeypatch, capsys):
    plan = triton_plan(tmp_path)
    monkeypatch.setattr(train_cli, "read_build", lambda _: plan)
    error = OutOfResources(300_000, 232_448, "shared memory")
    monkeypatch.setattr(w1w3_triton, "w1w3_backward_kernel", Failing(None, error, 0))
    run_dir = tmp_path / "run"
    assert train_cli.main([str(tmp_path), "--run", str(run_dir), "--sample", "0"]) == 1
    assert "the W1/W3 backward kernel failed" in capsys.readouterr().err
    assert not list(run_dir.glob("checkpoints/step-*"))


def test_a_kernel_that_fails_while_it_runs_ends_training_in_words(tmp_path, monkeypatch, capsys):
    plan = triton_plan(tmp_path)
    monkeypatch.setattr(train_cli, "read_build", lambda _: plan)
    # asynchronous: it is raised by whatever next looks at the device, not by the launch
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def wait(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gptoss_builder.train.loop._go", wait)
    assert train_cli.main([str(tmp_path), "--run", str(tmp_path / "run"), "--sample", "0"]) == 1
    told = capsys.readouterr().err
    assert "the GPU failed at step 1" in told
    assert "illegal memory access" in told
    assert "model.moe.dispatch: stacked" in told


def test_without_an_injected_failure_the_same_run_trains(tmp_path, monkeypatch, capsys):
    plan = triton_plan(tmp_path)
    monkeypatch.setattr(train_cli, "read_build", lambda _: plan)
    run_dir = tmp_path / "run"
    before = launches.copy()
    assert train_cli.main([str(tmp_path), "--run", str(run_dir), "--sample", "0"]) == 0
    assert [line["step"] for line in lines(run_dir)] == [1, 2]
    assert (launches - before)["up:triton"] > 0
    assert "trained to step 2" in capsys.readouterr().out


def test_a_build_whose_compiler_dies_is_an_error_and_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    out = tmp_path / "out"
    arguments = [str(SPECS / "gpt_oss_lite.yaml"), "--target", "sm80", "--out", str(out)]
    assert build_cli.main(arguments) == 1
    told = capsys.readouterr().err
    assert "the compiler for sm80 ended with status 1" in told
    assert "Traceback" not in told
    assert not out.exists()


def test_a_build_whose_kernel_does_not_compile_is_an_error_and_nothing_is_written(
    tmp_path, monkeypatch, capsys
):
    from gptoss_builder.plan.aot import Compiled, CompileReport

    def broken(requests):
        return [
            Compiled(CompileReport(request=r, error="PassManager::run failed"), b"")
            for r in requests
        ]

    monkeypatch.setattr(build_cli, "compile_kernels", broken)
    out = tmp_path / "out"
    arguments = [str(SPECS / "gpt_oss_lite.yaml"), "--target", "sm80", "--out", str(out)]
    assert build_cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert "does not compile: PassManager::run failed" in told
    assert not out.exists()
