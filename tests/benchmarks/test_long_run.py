"""A long run in parts: stopped, resumed and judged."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from benchmarks import long_run, long_run_record
from gptoss_builder.build_directory import write_build
from gptoss_builder.errors import InputError
from gptoss_builder.pipeline import make_plan
from tests.train.runs import small_plan

STEPS = 3000


@pytest.fixture
def build(tmp_path: Path) -> Path:
    plan = small_plan(tmp_path, training={"steps": 10**6, "optimizer": {"lr": 1e-3}})
    write_build(plan, tmp_path / "build", {})
    return tmp_path / "build"


def test_two_parts_are_stopped_by_a_signal_and_joined(build: Path, capfd) -> None:
    run = build.parent / "run"
    part = ["part", str(build), "--run", str(run), "--seconds", "1"]
    assert long_run.main(part) == 0
    assert long_run.main(part) == 2
    assert "holds 1 parts; give --resume" in capfd.readouterr().err
    assert long_run.main([*part, "--resume"]) == 0
    first, second = long_run_record.read_lines(run / "parts.jsonl")
    assert first["exit_code"] == second["exit_code"] == 3
    assert 0 < first["steps"][1] == second["steps"][0] < second["steps"][1]
    assert first["training_seconds"] >= 1


def test_a_part_that_fails_or_makes_no_step_says_so(build: Path, capfd) -> None:
    run = build.parent / "run"
    part = ["part", str(build), "--run", str(run), "--seconds", "9"]
    assert long_run.main([*part, "--resume"]) == 2
    assert long_run.main([*part, "--latest", "0"]) == 1
    (build / "plan.json").write_text("{}")
    assert long_run.main(part) == 1
    assert "gptoss-train ended with exit code 2" in capfd.readouterr().err


def test_a_part_that_starts_elsewhere_is_a_fault() -> None:
    before = [{"steps": [0, 5], "events": []}]
    ok = {"steps": [5, 9], "events": ["resumed from step-00000005"]}
    assert not long_run._faults(before, [*before, ok], 3)
    for entry in (ok | {"steps": [4, 9]}, ok | {"events": []}, ok | {"steps": [5, 5]}):
        assert long_run._faults(before, [*before, entry], 0)
    assert long_run._faults(before, before, 3)


def test_the_spec_of_the_run_is_legal_and_is_the_502m_model(tmp_path: Path) -> None:
    where = ["--data", str(tmp_path / "d"), "--tokenizer", str(tmp_path / "t.json")]
    assert long_run.main(["spec", str(tmp_path / "s.yaml"), *where, "--steps", "7200"]) == 0
    plan = make_plan(tmp_path / "s.yaml", target="h200")
    assert plan.parameters.total == 501_836_640
    training = plan.spec.training
    assert training is not None
    assert (training.accumulate, training.checkpoint_every, training.save_every) == (1, 0, 0)
    assert plan.spec.model.moe.backward == "save"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list, list, list]:
    """A run of two parts without fault: metrics, run.jsonl, the times of the parts, and a plan."""
    lines = [
        {
            "step": step,
            "loss": 9 - step / 1000 + 0.1 * (step * 7 % 11 - 5) / 5,
            "finite": True,
            "tokens_per_second": 4.0 if step in {1, 1501} else 100.0 + step % 3,
            "peak_allocated_bytes": 10**9,
            "peak_reserved_bytes": 2 * 10**9,
        }
        for step in range(1, STEPS + 1)
    ]
    lines.insert(500, {"step": 500, "held_out_loss": 8.76543, "unigram_entropy": 7.5})
    entries = [
        {"steps": [0, 1500], "events": [], "differences": []},
        {"steps": [1500, STEPS], "events": ["resumed from step-00001500"], "differences": []},
    ]
    times = [{"training_seconds": 460.0}, {"training_seconds": 465.0}]
    return lines, entries, times, [small_plan(tmp_path_factory.mktemp("plan"))]


def test_a_run_without_fault_passes_and_is_averaged(good) -> None:
    lines, entries, times, (plan,) = good
    made = long_run_record.summary(plan, lines, entries, times)
    assert [check for check in made["verdict"] if not check["ok"]] == []
    assert len(made["rows"]) == STEPS / long_run_record.BIN
    assert all(len(row) == len(made["columns"]) for row in made["rows"])
    assert made["starts"] == [1, 1501]
    assert made["held_out"] == [[500, 8.7654, 7.5]]
    first = made["rows"][0]
    assert first[0] == 20
    assert first[2] == pytest.approx(sum(line["loss"] for line in lines[:20]) / 20, abs=1e-4)
    assert first[4] == 32 / 4  # tokens of a step over the slowest rate
    assert made["tokens_per_second"] == [pytest.approx(101, abs=0.5)] * 2
    json.dumps(made, allow_nan=False)


def _steps(lines: list, start: int, stop: int) -> list:
    return [line for line in lines if "loss" in line and start <= line["step"] <= stop]


def _slow(lines, entries, times):
    _steps(lines, 700, 700)[0]["tokens_per_second"] = 30.0


def _slower(lines, entries, times):
    for line in _steps(lines, 1300, 1500):
        line["tokens_per_second"] *= 0.95


def _leak(lines, entries, times):
    for line in _steps(lines, 1501, 3000):
        line["peak_reserved_bytes"] += 2**20 * (line["step"] - 1500) // 100


def _rising(lines, entries, times):
    for line in _steps(lines, 2600, 3000):
        line["loss"] += 0.6


def _worse_after(lines, entries, times):
    for line in _steps(lines, 1501, 3000):
        line["loss"] += 0.2


def _not_finite(lines, entries, times):
    _steps(lines, 9, 9)[0].update(loss=None, finite=False)


def _gap(lines, entries, times):
    lines.remove(_steps(lines, 9, 9)[0])


def _elsewhere(lines, entries, times):
    entries[1]["events"] = ["resumed from step-00001400"]


def _other(lines, entries, times):
    entries[0]["differences"] = ["up:triton did not run"]


def _short(lines, entries, times):
    times.pop()


def _brief(lines, entries, times):
    """The second part ended after one step."""
    entries[1]["steps"] = [1500, 1501]
    del lines[lines.index(_steps(lines, 1501, 1501)[0]) + 1 :]


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_slow, "part 1: no step of 3 medians"),
        (_slower, "part 1: throughput"),
        (_leak, "part 2: reserved memory grew"),
        (_rising, "means of 200 steps rise"),
        (_worse_after, "the mean loss of 100 steps"),
        (_not_finite, "every loss and gradient norm finite"),
        (_gap, "every step from 1 on, once"),
        (_elsewhere, "resumed where the part before ended"),
        (_other, "what ran is what the plan says"),
        (_short, "at least 15 minutes"),
        (_brief, "more than 10 steps in every part"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_fault_is_found(spoil, what: str, good) -> None:
    lines, entries, times, (plan,) = copy.deepcopy(good)
    spoil(lines, entries, times)
    made = long_run_record.summary(plan, lines, entries, times)
    assert next(c["what"] for c in made["verdict"] if not c["ok"]).startswith(what)
    assert sum(not c["ok"] for c in made["verdict"]) <= 2


def test_a_run_of_one_part_is_not_the_long_run(good) -> None:
    lines, entries, times, (plan,) = copy.deepcopy(good)
    made = long_run_record.summary(plan, lines[:1200], [entries[0] | {"steps": [0, 1199]}], times)
    assert "resumed at least once" in [c["what"] for c in made["verdict"] if not c["ok"]]


def test_the_record_is_written_and_its_verdict_is_the_exit_code(good, build: Path, capsys) -> None:
    lines, entries, times, _ = copy.deepcopy(good)
    run = build.parent / "run"
    run.mkdir()
    out = build.parent / "record.json"
    command = ["record", str(build), "--run", str(run), "--out", str(out)]

    def write() -> None:
        for name, content in (("metrics", lines), ("run", entries), ("parts", times)):
            (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))

    write()
    assert long_run.main(command) == 0
    made = json.loads(out.read_text())
    assert made["parts"] == times
    assert {"gpu", "torch", "triton", "date"} <= made.keys()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30')
    assert long_run.main(command) == 2
    assert "metrics.jsonl is not JSON lines" in capsys.readouterr().err
    _worse_after(lines, entries, times)
    write()
    assert long_run.main(command) == 1
    assert "FAIL the mean loss of 100 steps" in capsys.readouterr().out


def test_too_few_steps_are_refused(build: Path) -> None:
    with pytest.raises(InputError, match="has 0 steps; 400 are the least"):
        long_run_record.record(build, build.parent / "run")
