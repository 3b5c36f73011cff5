"""What of the training-step benchmark runs without a GPU."""

import argparse

import pytest
import torch

from benchmarks import step_check, step_table, train_step
from benchmarks.step_rows import parse_row, plan_of
from gptoss_builder.model.build import build
from gptoss_builder.train.data import StepBatch


@pytest.fixture(scope="module")
def plan():
    return plan_of(parse_row("tiny"), target="cpu")


@pytest.fixture(scope="module")
def batch(plan):
    ids = torch.randint(plan.spec.model.vocab, (1, 2, 97), generator=torch.Generator())
    return StepBatch(ids[..., :-1].contiguous(), ids[..., 1:].contiguous(), ids[..., 1:].numel())


def test_the_right_model_passes_the_check(plan, batch):
    exact = step_check.plain_result(plan, batch)
    found = step_check.compare(build(plan), batch, exact)
    assert found["hidden_error"] < 1e-5
    assert abs(found["loss_difference"]) < 1e-5


def test_a_wrong_model_is_not_timed(plan, batch):
    exact = step_check.plain_result(plan, batch)
    model = build(plan)
    with torch.no_grad():
        for block in model.blocks:
            block.moe.w2.zero_()
    with pytest.raises(ValueError, match="not timed"):
        step_check.compare(model, batch, exact)


def test_a_row_that_fails_becomes_part_of_the_result(capsys):
    options = argparse.Namespace(target="cpu", dispatch=None, no_compile=False)
    found = train_step.run_row(parse_row("lite:0"), options, [])
    assert "SpecError" in found["error"]
    assert "lite:0" in capsys.readouterr().out


def test_alternatives_are_compared_with_rows_of_their_shape():
    def row(name, shape, rate, alternative=""):
        return {
            "row": name,
            "shape": shape,
            "alternative": alternative,
            "ms": 1.0,
            "tokens_per_second": rate,
        }

    before = [
        row("lite:0", "lite", 220.0),
        row("fine:0", "fine", 9.0),
        row("hf-bf16", "lite", 50.0, "hf-bf16"),
    ]
    broken = {"row": "lite:1", "shape": "lite", "alternative": "", "error": "x"}
    assert step_table.ratios(row("hf", "lite", 100.0, "hf"), [*before, broken]) == {"lite:0": 2.2}


def test_a_wrong_command_line_is_exit_code_2(monkeypatch, capsys, tmp_path):
    for words in (
        ["--rows", "heavy"],
        ["--target", "h300"],
        ["--out", str(tmp_path / "no" / "x.json")],
    ):
        monkeypatch.setattr("sys.argv", ["train_step", *words])
        with pytest.raises(SystemExit) as left:
            train_step.main()
        assert left.value.code == 2
        assert words[0] in capsys.readouterr().err or "h300" in words[1]
