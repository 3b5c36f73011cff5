"""--compile: what the compiler says becomes findings, and its absence an error that says so."""

from __future__ import annotations

import pytest

from gptoss_builder.cli.check import main
from gptoss_builder.errors import KernelError, MissingTritonError
from gptoss_builder.pipeline import check
from gptoss_builder.plan import aot
from tests.checkers.samples import GPU_SAMPLE, SAMPLE, edited

GROUPED = edited(GPU_SAMPLE, ("d_ff: 64", "d_ff: 64\n    dispatch: triton_grouped"))
OWN = GROUPED + "kernel: {block_t: 128, block_k: 64, block_n: 128, num_warps: 8, num_stages: 1}\n"


def compiler_that_says(**figures: object):
    def compile_report(requests):
        sound = {"shared_memory_limit": 10**6, "instructions": {"HGMMA": 8}}
        return [aot.CompileReport(request=request, **{**sound, **figures}) for request in requests]

    return compile_report


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"spill_bytes": 7696}, "spills 7696 bytes"),
        ({"error": "no such layout"}, "does not compile: no such layout"),
        ({"trap": True}, "trap"),
        ({"instructions": {"FFMA": 9}}, "no matrix instructions"),
        ({"shared_memory_bytes": 10**7}, "10,000,000 bytes of shared memory"),
    ],
)
@pytest.mark.parametrize(("text", "field"), [(OWN, "kernel"), (GROUPED, "model.moe.dispatch")])
def test_fault_of_a_compile_is_a_finding(monkeypatch, figures, words, text, field):
    monkeypatch.setattr(aot, "compile_report", compiler_that_says(**figures))
    found = check("x.yaml", text=text, compile_kernels=True).errors
    assert {(finding.code, finding.field) for finding in found} == {("KL011", field)}
    assert all(words in finding.message for finding in found)
    assert {"forward" in finding.message for finding in found} == {True, False}
    assert all(finding.fix for finding in found)


def test_sound_compile_and_a_spec_without_the_kernel_have_no_finding(monkeypatch):
    monkeypatch.setattr(aot, "compile_report", compiler_that_says())
    assert check("x.yaml", text=GROUPED, compile_kernels=True).findings == ()
    assert check("x.yaml", text=SAMPLE, compile_kernels=True).findings == ()


def test_nothing_is_compiled_unless_asked(monkeypatch):
    monkeypatch.setattr(aot, "compile_report", compiler_that_says(spill_bytes=1))
    assert check("x.yaml", text=GROUPED).findings == ()


@pytest.mark.parametrize(
    ("error", "code"),
    [(MissingTritonError("it needs Triton"), 2), (KernelError("it died"), 1)],
)
def test_compiler_that_cannot_run_is_an_error_and_not_a_clean_report(
    monkeypatch, tmp_path, capsys, error, code
):
    def fail(requests):
        raise error

    monkeypatch.setattr(aot, "compile_report", fail)
    path = tmp_path / "x.yaml"
    path.write_text(GROUPED)
    assert main([str(path), "--compile"]) == code
    told = capsys.readouterr().err
    assert str(error) in told
    assert ("or leave out --compile" in told) == isinstance(error, MissingTritonError)
