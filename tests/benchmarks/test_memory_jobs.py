"""The memory benchmark's processes: what runs at once, what each does, and what comes back."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import Job, next_job, planned_bytes, run_child, run_jobs
from benchmarks.memory_row import measured
from benchmarks.memory_specs import GROUPS, MEASURED, SPECS, USES, estimate_of
from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.training_memory import training_sums
from gptoss_builder.targets import lookup
from tests.plan.oracle import LiveStorages
from tests.plan.specs import lite
from tests.plan.test_evaluation_memory import held_out_peak

GIB = 2**30
SCALARS = 192 * 1024
"""Bytes that the closed form does not follow."""


def _job(gib: int) -> Job:
    return Job(str(gib), gib * GIB)


def test_names_are_of_one_spec_each():
    assert sum(map(len, GROUPS.values())) == len(SPECS)
    assert set(MEASURED) <= set(GROUPS)


@pytest.mark.parametrize("name", ["period 3", "serving, batch 8", "held-out loss"])
def test_a_job_is_planned_to_take_what_it_reserves_and_its_context(name):
    plan = make_plan(memory.spec_of(name, SPECS[name]), target="h200")
    serves = name in GROUPS["serving"]
    estimate = plan.memory.inference if serves else plan.memory.training
    assert estimate is estimate_of(plan, USES[name])
    assert planned_bytes(name, "h200") == estimate.reserved_bytes + estimate.context_bytes


@pytest.mark.parametrize("name", SPECS)
def test_every_spec_has_a_plan_that_fits_an_h200(name):
    assert planned_bytes(name, "h200") < 0.5 * 141 * GIB


def test_attentions_scratch_is_in_the_peak_of_the_specs_that_are_there_for_it():
    for name, kernel in (("32 heads, cuDNN", "cudnn"), ("32 heads, flash", "flash")):
        plan = make_plan(memory.spec_of(name, SPECS[name]), target="h200")
        last = plan.spec.model.layers - 1
        assert plan.execution.full_attention == kernel
        assert plan.spec.layer_kinds()[last] == "full"
        assert plan.memory.training.peak == f"backward of layer {last}"
        decided = (plan.spec, plan.execution, plan.parameters)
        with_scratch, without = (
            max(one.total for one in training_sums(*decided, scratch=scratch))
            for scratch in (True, False)
        )
        assert with_scratch > 1.07 * without  # a plan without it would be far off


@pytest.fixture
def counters(monkeypatch):
    """The GPU's counters, of what lives on this CPU."""
    live = LiveStorages()

    def forget():
        live.peaks[""] = live.live

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: live.peaks[""])
    return live


def _small(**changes):
    return resolve(
        lite(
            model__vocab=1000,
            model__d_model=256,
            model__layers=2,
            model__moe={"experts": 4, "top_k": 2, "shared_experts": 1, "d_ff": 256},
            training__context=200,
            training__micro_batch=2,
            training__accumulate=1,
            training__precision="fp32",
            **changes,
        ),
        lookup("cpu"),
    )


@pytest.mark.parametrize(
    "inference", [{"context": 1028, "batch": 3, "prefill_chunk": 256}, {"context": 300}]
)
def test_what_is_served_fills_the_context_in_the_planned_chunks(inference, counters):
    plan = _small(inference=inference)
    with counters:
        found = measured(plan, "serving", 2)
    assert set(found) == {"allocated", "reserved", "moments", "first_allocated"}
    for moment in plan.memory.inference.moments:
        actual = found["moments"][moment.name]
        assert moment.allocated_bytes == pytest.approx(actual, rel=1e-2, abs=SCALARS), moment.name
    assert found["allocated"] == max(found["moments"].values())
    assert found["first_allocated"] == pytest.approx(found["allocated"], rel=1e-3)


def test_a_held_out_loss_is_taken_beside_the_optimizers_state(counters):
    plan = _small()
    with counters:
        step = measured(plan, "training", 2)
        found = measured(plan, "held-out loss", 2)
    assert set(step) == {"allocated", "reserved"}
    assert set(found) == {"allocated", "reserved", "first_allocated"}
    assert found["first_allocated"] <= found["allocated"] < step["allocated"]
    assert found["allocated"] == pytest.approx(held_out_peak(plan), abs=SCALARS)
    assert found["allocated"] < plan.memory.training.allocated_bytes


def _row(name, use, **figures):
    planned = {"planned_allocated": 103 * GIB, "planned_reserved": 104 * GIB}
    return {"name": name, "use": use, "peak": "decode"} | planned | figures


def test_a_printed_row_says_what_was_measured(capsys):
    rows = [
        _row("served", "serving", allocated=100 * GIB, reserved=104 * GIB),
        _row("trained", "training", allocated=103 * GIB, reserved=100 * GIB),
        {"name": "broken", "failed": "no GPU"},
    ]
    for row in rows:
        memory.show(row)
    memory.summarize(rows)
    printed = capsys.readouterr().out
    assert (
        "103.000 /  100.000   +3.00%   +3072  104.000 /  104.000   +0.00%  serving: decode"
        in printed
    )
    assert "serving, allocated: 1 specs, error from +3.00% to +3.00%" in printed
    assert "training, reserved: 1 specs, error from +4.00% to +4.00%" in printed
    assert "broken" in printed


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        ([60, 40, 6], [], 60),
        ([60, 40, 6], [60, 40], 6),
        ([60, 40], [60, 40], None),
        ([20], [100], 20),  # exactly
        ([21], [100], None),
        ([130], [], 130),  # more than there is: by itself
        ([130, 6], [6], 6),
        ([6], [6, 6, 6, 6], None),  # four run at once
        ([], [], None),
    ],
)
def test_the_largest_that_fits_is_next(waiting, running, expected):
    found = next_job([_job(w) for w in waiting], [_job(r) for r in running], 4, 120 * GIB)
    assert found == (None if expected is None else _job(expected))


@pytest.mark.parametrize("limit", [1, 3])
def test_every_job_runs_once_and_never_too_many_or_too_much(limit):
    jobs = [Job(str(n), gib * GIB) for n, gib in enumerate([60, 6, 50, 30, 130, 6, 30, 15])]
    running: list[Job] = []
    most: list[tuple[int, int]] = []
    lock = threading.Lock()
    results = {}

    def work(job):
        with lock:
            running.append(job)
            most.append((len(running), sum(one.planned_bytes for one in running)))
        time.sleep(0.02)
        with lock:
            running.remove(job)
        return {"name": job.name}

    def done(job, row):
        assert job.name not in results
        results[job.name] = row

    run_jobs(jobs, limit, 120 * GIB, work, done)
    assert results == {job.name: {"name": job.name} for job in jobs}
    assert max(count for count, _ in most) == limit
    alone = [total for count, total in most if count == 1]
    assert 130 * GIB in alone
    assert all(total <= 120 * GIB for count, total in most if count > 1)


def _says(code: str) -> dict[str, object]:
    return run_child([sys.executable, "-c", code], "period 3")


def test_a_row_is_the_last_line_that_a_process_prints():
    row = _says('print(\'compiling\'); print(\'{"name": "period 3", "allocated": 7}\')')
    assert row == {"name": "period 3", "allocated": 7}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('the loss is not finite')", "the loss is not finite"),
        ("import os; os._exit(9)", "nothing printed, exit code 9"),
        ("print('{}'); import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        ("pass", "nothing printed, exit code 0"),
        ("print('no row')", "no row: "),
    ],
)
def test_a_process_that_fails_is_a_row_that_says_why(code, reason):
    row = _says(code)
    assert row["name"] == "period 3"
    assert reason in row["failed"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_without_a_gpu_there_is_one_line_and_no_row(capsys, monkeypatch, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["memory", "--only", "eager", "--out", str(out)])
    assert memory.main() == 2
    assert capsys.readouterr().err == "no CUDA GPU here: nothing to measure\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "h300"], "unknown target 'h300'"),
        (["--target", "cpu"], "the target is cpu"),
        (["--jobs", "0"], "0 is not a number from 1 on"),
        (["--out", "nowhere/x.json"], "there is no folder nowhere"),
    ],
)
def test_wrong_usage_is_2(words, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["memory", *words])
    with pytest.raises(SystemExit) as left:
        memory.main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("jobs", "alone"), [("1", True), ("8", False)])
def test_the_context_is_measured_only_where_nothing_else_runs(jobs, alone):
    options = memory._parser().parse_args(["--jobs", jobs, "--allocator", "fixed"])
    command = memory.child(options, "eager, period 3")
    assert ("--alone" in command) == alone
    assert command[1:4] == ["-m", "benchmarks.memory_row", "eager, period 3"]
    assert command[command.index("--allocator") + 1] == "fixed"
