"""What of the training-step benchmark runs without a GPU."""

import argparse

import pytest
import torch

from benchmarks import step_check, step_page, step_table, train_step
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


def test_rounding_is_allowed_what_it_costs_the_plain_model(plan, batch):
    low = plan.model_copy(
        update={"execution": plan.execution.model_copy(update={"precision": "bf16"})}
    )
    exact = step_check.plain_result(low, batch)
    assert 1e-3 < exact.error < 0.1
    model = build(plan).bfloat16()
    assert step_check.compare(model, batch, exact)["hidden_error"] > 1e-3
    with pytest.raises(ValueError, match="not timed"):
        step_check.compare(model, batch, step_check.plain_result(plan, batch))


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
        ["--steps", "0"],
        ["--dispatch", "fast"],
    ):
        monkeypatch.setattr("sys.argv", ["train_step", *words])
        with pytest.raises(SystemExit) as left:
            train_step.main()
        assert left.value.code == 2
        assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "{", "{}", "[]", '{"rows": 3, "machine": {}}'])
def test_what_is_no_record_is_exit_code_2(content, monkeypatch, capsys, tmp_path):
    file = tmp_path / "record.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["step_page", str(file)])
    assert step_page.main() == 2
    assert capsys.readouterr().err.startswith(str(file))


def test_a_record_becomes_a_page():
    profile = {
        "busy_ms": 3.0,
        "idle": 0.25,
        "components": [{"name": "rest", "ms": 3.0, "launches": 2, "predicted_ms": None}],
    }
    sizes = {"parameters": 5e8, "active": 2e8, "alternative": ""}
    rows = [
        sizes | {"row": "lite:0", "ms": 4.0, "tokens_per_second": 9000.0, "profile": profile},
        sizes | {"row": "fine:0", "out_of_memory": True},
        {"row": "2.4b:0", "error": "KernelError: it broke"},
        sizes | {"row": "hf", "ms": 8.0, "ours_to_it": {"lite:0": 2.0}},
    ]
    record = {"machine": {"gpu": "H200", "torch": "2"}, "dense_tflops": 690.4, "rows": rows}
    text = step_page.page(record)
    lines = text.splitlines()
    assert "H200, 2; a dense bf16 product in the same run: 690 TFLOP/s." in lines
    assert next(line for line in lines if line.startswith("| lite:0")).split(" | ")[1:3] == [
        "500M, 200M",
        "4.0",
    ]
    assert "out of memory" in text
    assert "KernelError: it broke" in text
    assert "- lite:0 does 2.00 × the tokens/s of hf" in lines
    assert "| rest | 3.00 |  | 2 |" in lines
    widths = {line.count("|") for line in lines if line.startswith(("| row", "| lite", "| 2.4b"))}
    assert len(widths) == 1
