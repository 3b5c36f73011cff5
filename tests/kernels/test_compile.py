"""Ahead-of-time compiles: figures that can be checked, the cache, and failures in words."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from gptoss_builder.errors import KernelError, MissingTritonError
from gptoss_builder.plan import aot
from gptoss_builder.plan.aot import CompileRequest, compile_kernels, compile_report
from gptoss_builder.plan.launch import SEED, choose, shared_memory_bytes
from tests.kernels.rows import launch


def request(arch: str = "sm90", precision: str = "bf16", **change: object) -> CompileRequest:
    values = {"arch": arch, "precision": precision, "d_model": 768, "d_ff": 1536, "experts": 8}
    if "launch" not in change:
        change["launch"] = choose(arch, precision, 768, 1536, "auto")
    return CompileRequest(**values | change)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def test_hopper_row_uses_its_matrix_and_copy_engines_without_a_spill(cache):
    (compiled,) = compile_kernels([request()], cache=cache)
    report = compiled.report
    assert report.problems() == ()
    assert report.instructions["HGMMA"] > 0
    assert report.instructions["UTMALDG"] > 0  # weights
    assert report.instructions["LDGSTS"] > 0  # gathered rows
    assert report.shared_memory_bytes == shared_memory_bytes(report.request.launch, "sm90", 2)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert 0 < report.seconds < 60
    assert "seconds" not in report.model_dump_json()


def test_a_second_call_starts_no_compiler_and_gives_the_same(cache, monkeypatch):
    first = compile_kernels([request()], cache=cache)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("started a compiler"))
    assert compile_kernels([request(), request()], cache=cache) == [first[0], first[0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch", ["sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]
)
def test_every_row_of_the_table_compiles_clean(arch, cache):
    precisions = ["fp32"] if arch == "sm75" else ["bf16", "fp32"]
    modes = ({}, {"write_gate_up": True}, {"write_gate_up": True, "write_h": False})
    requests = [request(arch, precision, **mode) for precision in precisions for mode in modes]
    for report in compile_report(requests, cache=cache):
        assert report.problems() == (), report
        if report.request.precision == "fp32":
            assert report.instructions["FFMA"] > 0
        evidence = report.request.launch.evidence
        if not report.request.write_gate_up and evidence.startswith(f"Triton {report.triton[:3]}:"):
            assert f" {report.registers} registers, no spill" in evidence
            assert f" {report.shared_memory_bytes // 1024} KiB shared" in evidence
            assert f" {report.occupancy} block" in evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch", ["sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]
)
def test_every_row_is_clean_at_awkward_sizes(arch, cache):
    """Where block_k does not divide d_model a mask takes registers too."""
    precisions = ["fp32"] if arch == "sm75" else ["bf16", "fp32"]
    sizes = [(8, 8, 8), (72, 1000, 1), (1000, 72, 1000), (8192, 8192, 4096)]
    requests = [
        request(arch, precision, d_model=d_model, d_ff=d_ff, experts=experts, **outputs)
        for precision in precisions
        for d_model, d_ff, experts in sizes
        for outputs in ({}, {"write_gate_up": True})
    ]
    for report in compile_report(requests, cache=cache):
        assert report.problems() == (), report


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch", ["sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]
)
def test_the_backward_of_the_activation_compiles_clean(arch, cache):
    precisions = ["fp32"] if arch == "sm75" else ["bf16", "fp32"]
    kernels = ("activation_backward", "shared_activation_backward")
    requests = [
        request(arch, precision, d_ff=d_ff, kernel=kernel)
        for precision in precisions
        for kernel in kernels
        for d_ff in (8, 1000, 16384)
    ]
    for report in compile_report(requests, cache=cache):
        assert report.problems() == (), report
        assert report.num_warps == 4
        assert report.occupancy >= 4


@pytest.mark.slow
def test_too_large_a_tile_compiles_and_is_found_out(cache):
    big = launch(128, 64, 128, num_warps=8, num_stages=4)
    (report,) = compile_report([request("sm86", launch=big)], cache=cache)
    assert any("shared memory" in problem for problem in report.problems())


@pytest.mark.slow
def test_turing_has_no_matrix_instructions_for_the_kernel(cache):
    (report,) = compile_report([request("sm75", "fp32", launch=SEED)], cache=cache)
    assert report.problems() == ()
    assert "HMMA" not in report.instructions


@pytest.mark.slow
def test_the_shipped_specs_are_proven_for_three_architectures_within_a_minute(tmp_path):
    """On two cores, the three starts of the command in it; from the cache in three seconds."""

    def prove_all() -> float:
        start = time.perf_counter()
        for target in ("sm80", "sm90", "sm120"):
            command = f"-m gptoss_builder.cli.check --compile --target {target} specs"
            subprocess.run(
                [sys.executable, *command.split()],
                env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
                cwd=Path(__file__).parents[2],
                check=True,
            )
        return time.perf_counter() - start

    assert prove_all() < 60
    assert prove_all() < 3


@pytest.mark.slow
def test_machine_code_does_not_depend_on_the_folder(cache, tmp_path):
    (first,) = compile_kernels([request("sm80")], cache=cache)
    (second,) = compile_kernels([request("sm80")], cache=tmp_path)
    assert first.cubin == second.cubin


def test_the_working_directory_has_no_say_in_a_compile(tmp_path, monkeypatch):
    """A file of the user's that is named as a module must not take its place."""
    for name in ("triton", "torch", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    backward = request("sm80", kernel="activation_backward")
    (report,) = compile_report([backward], cache=tmp_path / "cache")
    assert report.problems() == ()
    assert report.registers > 0


def test_a_compiler_that_dies_is_an_error_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(KernelError, match="sm80 ended with status 1"):
        compile_report([request("sm80")], cache=tmp_path)


def test_a_compiler_that_does_not_start_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(KernelError, match=r"sm80 did not start: .*/python: No such file"):
        compile_report([request("sm80")], cache=tmp_path)


@pytest.mark.parametrize(
    ("missing", "name"), [("triton", "needs Triton.*Linux only"), ("torch", "needs PyTorch")]
)
@pytest.mark.parametrize("folder", [False, True], ids=["absent", "a folder of that name"])
def test_without_what_it_needs_the_way_out_is_named(missing, name, folder, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    instead = ModuleSpec(missing, None) if folder else None
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: instead if name == missing else real(name)
    )
    with pytest.raises(MissingTritonError, match=name + r".*pip install '\.\[train\]'"):
        compile_report([request("sm80")], cache=tmp_path)


def test_triton_under_the_name_of_a_nightly_build_is_a_version_too(monkeypatch):
    def version(name: str) -> str:
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return "3.9.0+git"

    metadata = importlib.metadata
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"triton": ["pytorch-triton"]})
    assert aot._triton_version() == "pytorch-triton 3.9.0+git"


def test_nothing_asked_nothing_done(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert compile_report([]) == []
