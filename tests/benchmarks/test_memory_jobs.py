"""The memory benchmark's processes: what runs at once, and what comes back of each."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import Job, next_job, planned_bytes, run_child, run_jobs
from benchmarks.memory_specs import GROUPS, SPECS
from gptoss_builder.pipeline import make_plan

GIB = 2**30


def _job(gib: int) -> Job:
    return Job(str(gib), gib * GIB)


def test_names_are_of_one_spec_each():
    assert sum(map(len, GROUPS.values())) == len(SPECS) == 29


def test_a_job_is_planned_to_take_what_it_reserves_and_its_context():
    plan = make_plan(memory.spec_of("period 3", SPECS["period 3"]), target="h200")
    estimate = plan.memory.training
    assert planned_bytes("period 3", "h200") == estimate.reserved_bytes + estimate.context_bytes


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
