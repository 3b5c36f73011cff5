"""gptoss-bench smoke, end to end on a CPU."""

from __future__ import annotations

import pytest

from gptoss_builder.cli.bench import main


def test_smoke_passes_on_a_cpu_and_says_what_cannot_run_there(capsys):
    assert main(["smoke", "--target", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "triton_grouped: cannot run on cpu" in out
    assert "5 steps trained, saved and loaded" in out


def test_smoke_fails_when_what_is_loaded_is_not_what_was_saved(monkeypatch, capsys):
    monkeypatch.setattr("gptoss_builder.train.checkpoint.restore_model", lambda *_: None)
    assert main(["smoke", "--target", "cpu"]) == 1
    assert "is not what was saved" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["smoke", "--fast"], ["smoke", "--target", "gtx9"]])
def test_wrong_usage_is_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err
