"""gptoss-bench smoke, end to end on a CPU."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from gptoss_builder.cli.bench import main
from gptoss_builder.errors import RunError


def test_smoke_passes_on_a_cpu_and_says_what_cannot_run_there(capsys):
    assert main(["smoke", "--target", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "triton_grouped: cannot run on cpu" in out
    assert "only stacked can run here, so there is nothing to compare it with" in out
    assert "5 steps trained, saved and loaded" in out


def test_smoke_fails_when_what_is_loaded_is_not_what_was_saved(monkeypatch, capsys):
    monkeypatch.setattr("gptoss_builder.train.checkpoint.restore_model", lambda *_: None)
    assert main(["smoke", "--target", "cpu"]) == 1
    assert "is not what was saved" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["smoke", "--fast"], ["smoke", "--target", "gtx9"]])
def test_wrong_usage_is_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("what", ["w1w3", "moe"])
def test_a_benchmark_without_a_gpu_is_one_line(what, capsys):
    assert main([what]) == 2
    assert "no CUDA GPU is available here" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("target", ["h200", "t4", "sm75"])
def test_smoke_on_a_card_that_is_not_here_is_one_line(target, capsys):
    assert main(["smoke", "--target", target]) == 2
    told = capsys.readouterr()
    assert "no GPU is available here" in told.err
    assert ("grouped_mm: cannot run" in told.out) == (target != "h200")


def _plans():
    from gptoss_builder.cli.bench import EXPERTS, _plan

    plan = _plan("stacked", "cpu", EXPERTS)
    return {"stacked": plan, "other": plan}


def test_two_dispatches_that_agree_pass(capsys):
    from gptoss_builder.cli.bench import _compare_dispatches

    _compare_dispatches(_plans())
    assert "other: values and gradients within 0.0e+00 of stacked" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["logits", "blocks.1.moe.w2"])
@pytest.mark.parametrize(("factor", "shown"), [(1.001, "1.0e-03"), (math.nan, "inf")])
def test_one_wrong_value_or_gradient_stops_the_smoke_test(part, factor, shown, monkeypatch):
    from gptoss_builder.cli import bench

    plans, real = _plans(), bench._step
    results = [real(plans["stacked"]), real(plans["other"])]
    results[1][part] = results[1][part] * factor
    monkeypatch.setattr(bench, "_step", lambda _: results.pop(0))
    with pytest.raises(RunError, match=f"other differs by {shown} from stacked in {part}"):
        bench._compare_dispatches(plans)


CORE_ONLY = """
import sys
sys.modules.update(torch=None, triton=None, numpy=None, safetensors=None, tokenizers=None)
from gptoss_builder.cli.{module} import main
sys.exit(main(sys.argv[1:]))
"""


def _in_the_core_install(module, *arguments):
    command = [sys.executable, "-c", CORE_ONLY.format(module=module), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("bench", ["smoke"]),
        ("bench", ["w1w3"]),
        ("prepare", ["shards", __file__, "out"]),
        ("prepare", ["bpe", __file__, "out.json", "--vocab", "300"]),
    ],
)
def test_without_the_extras_one_line_says_what_to_install(module, arguments):
    done = _in_the_core_install(module, *arguments)
    assert done.returncode == 2
    assert "needs the package numpy; pip install '.[train]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["bench", "prepare", "train"])
def test_help_needs_no_extras(module):
    done = _in_the_core_install(module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


@pytest.mark.parametrize("what", ["w1w3", "moe"])
def test_a_benchmark_shows_its_own_help(what):
    command = [sys.executable, "-m", "gptoss_builder.cli.bench", what, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--cases" in done.stdout
