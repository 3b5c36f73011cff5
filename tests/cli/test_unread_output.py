"""Commands whose output goes into a pipe that nobody reads any more, as `| head` leaves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gptoss_builder.build_directory import write_build
from gptoss_builder.train import checkpoint
from tests.cli.test_train import _wait_for_steps
from tests.train.runs import lines, small_plan

ROOT = Path(__file__).parents[2]
SPEC = str(ROOT / "specs" / "tiny.yaml")
LITE = str(ROOT / "specs" / "gpt_oss_lite.yaml")
BAD = str(ROOT / "tests" / "checkers" / "rules" / "mo001" / "bad.yaml")
FULL = Path("/dev/full")


def _start(folder: Path, command: str, *arguments: str, **pipes: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", f"gptoss_builder.cli.{command}", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        **pipes,
    )


def _closed_pipe() -> int:
    """The end to write into of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _build(folder: Path, steps: int) -> None:
    training = {"steps": steps, "optimizer": {"lr": 1e-2}}
    write_build(small_plan(folder, training=training), folder / "build", {})


@pytest.mark.parametrize("errors_too", [False, True])
def test_training_goes_on_to_its_end(tmp_path: Path, errors_too: bool) -> None:
    _build(tmp_path, 5)
    pipe = _closed_pipe()
    pipes = {"stdout": pipe, "stderr": pipe if errors_too else subprocess.PIPE}
    process = _start(tmp_path, "train", "build", "--run", "run", "--sample", "5", **pipes)
    os.close(pipe)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert not told
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert [step for step, _ in checkpoint.found(tmp_path / "run" / "checkpoints")] == [5]


def test_a_reader_that_leaves_after_the_first_line_and_a_signal_after_it(tmp_path: Path) -> None:
    _build(tmp_path, 10**6)
    process = _start(
        tmp_path, "train", "build", "--run", "run",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"step 1/1000000  loss")
        process.stdout.close()
        _wait_for_steps(tmp_path / "run" / "metrics.jsonl")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 3
    finally:
        process.kill()
        process.wait()
    ((step, path),) = checkpoint.found(tmp_path / "run" / "checkpoints")
    assert checkpoint.load(path).step == step == lines(tmp_path / "run")[-1]["step"]


def test_a_failure_keeps_its_exit_code(tmp_path: Path) -> None:
    pipe = _closed_pipe()
    process = _start(tmp_path, "train", "nowhere", stdout=pipe, stderr=pipe)
    os.close(pipe)
    assert process.wait(timeout=60) == 2


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        ("build", [SPEC, "--out", "out", "--no-compile"], 0),
        ("build", [SPEC, "--periods"], 0),
        ("build", ["--example", "tiny"], 0),
        ("bench", ["smoke", "--target", "cpu"], 0),
        ("prepare", ["shards", SPEC, "out"], 0),
        ("check", [SPEC], 0),
        ("check", [BAD], 1),
        ("check", ["--explain", "MO001"], 0),
        ("build", ["--help"], 0),
    ],
)
def test_other_commands_end_without_a_traceback(
    tmp_path: Path, command: str, arguments: list[str], code: int
) -> None:
    pipe = _closed_pipe()
    process = _start(tmp_path, command, *arguments, stdout=pipe, stderr=subprocess.PIPE)
    os.close(pipe)
    _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (code, b"")
    if "out" in arguments:
        written = "manifest.json" if command == "prepare" else "plan.json"
        assert (tmp_path / "out" / written).is_file()


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("build", f"{SPEC} --out out --no-compile"),
        ("build", f"{LITE} --cost"),
        ("build", "--example tiny"),
        ("check", SPEC),
        ("check", "--explain MO001"),
        ("check", f"{SPEC} --format json"),
        ("build", "--help"),
    ],
)
def test_output_onto_a_full_disk_is_exit_1_with_a_message(
    tmp_path: Path, command: str, arguments: str, buffered: bool
) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", f"gptoss_builder.cli.{command}", *arguments.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "" if buffered else "1"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(": the output was not written: No space left on device")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_training_whose_log_is_on_a_full_disk_goes_on_and_says_so(tmp_path: Path) -> None:
    _build(tmp_path, 5)
    with FULL.open("w") as full:
        process = _start(
            tmp_path, "train", "build", "--run", "run", stdout=full, stderr=subprocess.PIPE
        )
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0
    assert told.endswith(b" not written: No space left on device; it goes on without\n")
    assert told.count(b"\n") == 1
    assert [step for step, _ in checkpoint.found(tmp_path / "run" / "checkpoints")] == [5]


@pytest.mark.parametrize(("command", "code"), [("build", 0), ("check", 0), ("train", 2)])
def test_a_closed_standard_output_is_none(tmp_path: Path, command: str, code: int) -> None:
    arguments = {"build": f"{SPEC} --out out --no-compile", "check": SPEC, "train": "nowhere"}
    line = f"{sys.executable} -m gptoss_builder.cli.{command} {arguments[command]} >&-"
    done = subprocess.run(
        line,
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
