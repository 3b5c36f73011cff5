"""gptoss-train and the preparation of data, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from gptoss_builder.build_directory import write_build
from gptoss_builder.cli import prepare
from gptoss_builder.cli import train as cli
from gptoss_builder.errors import InputError
from gptoss_builder.train import checkpoint
from tests.train.runs import TEXT, lines, run, small_plan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build directory of two steps; the current directory is the test's."""
    monkeypatch.chdir(tmp_path)
    return _build(tmp_path, {"steps": 2})


def _build(folder: Path, training: dict[str, Any]) -> Path:
    directory = folder / "build" / "small-cpu"
    legal = training | {"optimizer": {"lr": 1e-2}}
    write_build(small_plan(folder, training=legal), directory, {})
    return directory


def test_a_build_is_trained_and_a_sample_printed(build: Path, capsys) -> None:
    assert cli.main([str(build), "--sample", "9", "--prompt", "def f"]) == 0
    out = capsys.readouterr().out
    assert "step 2/2  loss" in out
    assert "tokens/s" in out
    assert "step 2: held-out loss" in out
    assert "unigram entropy" in out
    assert "trained to step 2 of 2; runs/small-cpu/checkpoints/step-00000002 is saved" in out
    assert "sample of 9 tokens at temperature 0.8:\ndef f" in out


def test_a_finished_run_says_that_there_is_nothing_to_do(build: Path, capsys) -> None:
    assert cli.main([str(build), "--sample", "0", "--stop-after", "1"]) == 0
    assert cli.main([str(build), "--sample", "0", "--resume"]) == 0
    assert cli.main([str(build), "--sample", "0", "--resume"]) == 0
    assert "nothing to do: runs/small-cpu is at step 2 of 2" in capsys.readouterr().out
    assert [line["step"] for line in lines(Path("runs/small-cpu"))] == [1, 2]


@pytest.mark.parametrize("flags", [[], ["--unchecked-memory"]])
def test_the_memory_flag_reaches_the_trainer(
    flags: list[str], build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refuse(*_: object, **options: object) -> None:
        asked.append(options["unchecked_memory"])
        raise InputError("seen")

    monkeypatch.setattr("gptoss_builder.train.loop.train", refuse)
    assert cli.main([str(build), "--sample", "0", *flags]) == 2
    assert asked == [bool(flags)]


def test_data_can_be_put_elsewhere(build: Path, capsys) -> None:
    Path("text.txt").rename("moved.txt")
    assert cli.main([str(build)]) == 2
    error = capsys.readouterr().err
    assert "text.txt is not there" in error
    command = re.search(r"gptoss-prepare (stdlib .*)", error)
    assert command is not None
    assert prepare.main(shlex.split(command[1])) == 0
    assert cli.main([str(build), "--run", "stdlib", "--sample", "0"]) == 0
    assert cli.main([str(build), "--data", "moved.txt", "--sample", "0"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "plan.json is not there; gptoss-build writes it"),
        (["text.txt"], "text.txt is a file; name the folder that gptoss-build wrote"),
        (["build/small-cpu", "--prompt", "a" * 16], "has 17 tokens and fills the whole context"),
        (["build/small-cpu", "--device", "cuda"], "this build is for cpu (cpu), not for cuda"),
        (["build/small-cpu", "--device", "tpu?"], "tpu? is not a device"),
        (["build/small-cpu", "--resume", "step-1"], "step-1 is no checkpoint"),
        (["build/small-cpu", "--tokenizer", "t.json"], "tokenizer t.json is not there"),
        (["build/small-cpu", "--run", "text.txt"], "run directory text.txt cannot be written"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(
    build: Path, capsys, arguments: list[str], message: str
) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gptoss-train: ")
    assert error.count("\n") == 1


def test_wrong_usage_is_exit_code_2(build: Path) -> None:
    wrong = [
        ["--stop-after", "0"],
        ["--stop-after", "x"],
        ["--sample", "-5"],
        ["--sample", "x"],
        ["--data", ""],
        ["--tokenizer", ""],
        ["--run", ""],
        ["--prompt", "\udcff"],
        ["--data", "text\udcff"],
        ["--tokenizer", "\udcff.json"],
        ["--nope"],
    ]
    for arguments in ([], *([str(build), *option] for option in wrong)):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("spec.model.layers", 3, "is not what this version makes of its spec: "),
        ("spec.training.micro_batch", 64, "is not what plan.json was made of"),
        ("execution.precision", "bf16", "execution.precision is bf16, not fp32 (1 differ)"),
        ("execution.checkpointed_layers", [1], "execution.checkpointed_layers is [1], not []"),
        ("spec.model.moe.top_k", 9, "refuses: top_k is 9"),
        ("spec.training.optimizer.lr", 2e-2, "optimizer.lr is 0.01 there and 0.02 in the plan"),
    ],
)
def test_a_plan_that_was_edited_is_refused(
    build: Path, capsys, field: str, value: object, message: str
) -> None:
    plan = json.loads((build / "plan.json").read_text())
    *sections, name = field.split(".")
    section = plan
    for part in sections:
        section = section[part]
    section[name] = value
    (build / "plan.json").write_text(json.dumps(plan))
    assert cli.main([str(build), "--sample", "0"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "spec.yaml",
            "steps: 2",
            "steps: 5",
            "steps is 5 there and 2 in the plan (1 differ)",
        ),
        ("spec.yaml", "top_k:", "top_kk:", "small-cpu/spec.yaml:"),
        ("spec.yaml", "gpu: cpu", "gpu: h200", "target.gpu is h200 there and cpu in the plan"),
        ("launch.json", "null", "{}", "launch.json is not the launch configuration of the plan"),
    ],
)
def test_what_was_edited_beside_the_plan_is_refused(
    build: Path, capsys, name: str, old: str, new: str, message: str
) -> None:
    text = (build / name).read_text()
    assert old in text
    (build / name).write_text(text.replace(old, new))
    assert cli.main([str(build), "--sample", "0"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith("build it again with gptoss-build\n")
    assert error.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["spec.yaml", "launch.json"])
def test_a_build_that_lacks_a_file_is_refused(build: Path, capsys, name: str) -> None:
    (build / name).unlink()
    assert cli.main([str(build), "--sample", "0"]) == 2
    assert f"build/small-cpu/{name}" in capsys.readouterr().err


def test_a_comment_in_the_builds_spec_changes_nothing(build: Path) -> None:
    text = (build / "spec.yaml").read_text()
    (build / "spec.yaml").write_text(f"# as of today\n{text}")
    assert cli.main([str(build), "--sample", "0", "--stop-after", "1"]) == 0


def test_what_cannot_be_sampled_is_refused_before_training(build: Path, capsys) -> None:
    assert cli.main([str(build), "--prompt", "a" * 16]) == 2
    assert not Path("runs").exists()


def test_a_context_of_one_token_has_no_room_for_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    build = _build(tmp_path, {"steps": 1, "context": 1})
    assert cli.main([str(build)]) == 0
    assert "no sample: the context has no room for a token" in capsys.readouterr().out


def test_a_sample_holds_no_control_characters(build: Path, capsys) -> None:
    prompt = "a\x1b[2J\r\x7f\x9b\n\té"
    assert cli.main([str(build), "--sample", "2", "--stop-after", "1", "--prompt", prompt]) == 0
    out = capsys.readouterr().out
    assert "\na\ufffd[2J\ufffd\ufffd\ufffd\n\té" in out
    assert all(char.isprintable() or char in "\n\t" for char in out[out.index("sample of") :])


def test_a_terminal_that_knows_ascii_only_shows_the_sample(build: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gptoss_builder.cli.train", str(build), "--prompt", "é→"],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"sample of 10 tokens at temperature 0.8:\n??" in done.stdout


def test_ctrl_c_before_the_first_step_leaves_without_a_traceback(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_build", interrupted)
    assert cli.main([str(build)]) == 130
    assert capsys.readouterr().err == "gptoss-train: interrupted\n"


@pytest.mark.filterwarnings("default")
def test_remarks_of_the_compiler_are_not_shown_but_warnings_are(
    build: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = cli.read_build

    def remarking(path: Path) -> Any:
        for module in ("torch._inductor.lowering", "gptoss_builder.train.checkpoint"):
            warnings.warn_explicit(f"from {module}", UserWarning, "file.py", 1, module=module)
        return inner(path)

    monkeypatch.setattr(cli, "read_build", remarking)
    assert cli.main([str(build), "--stop-after", "1", "--sample", "0"]) == 0
    error = capsys.readouterr().err
    assert "warning: from gptoss_builder.train.checkpoint" in error
    assert "torch._inductor" not in error


@pytest.mark.filterwarnings("default")
def test_a_damaged_checkpoint_is_a_warning_without_a_traceback(build: Path, capsys) -> None:
    assert cli.main([str(build), "--sample", "0", "--stop-after", "1"]) == 0
    assert cli.main([str(build), "--sample", "0", "--resume"]) == 0
    Path("runs/small-cpu/checkpoints/step-00000002/state.json").unlink()
    assert cli.main([str(build), "--sample", "0", "--resume"]) == 0
    assert "warning: checkpoint runs/small-cpu/checkpoints/step-00000002 is not complete" in (
        capsys.readouterr().err
    )


def _start(folder: Path, run: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gptoss_builder.cli.train", "build/small-cpu", "--run", run],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_steps(metrics: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") > 2:
            return
        time.sleep(0.05)
    raise AssertionError("no step ended within two minutes")


def test_sigterm_saves_and_has_its_own_exit_code(tmp_path: Path) -> None:
    _build(tmp_path, {"steps": 10**6})
    process = _start(tmp_path, "run")
    try:
        _wait_for_steps(tmp_path / "run" / "metrics.jsonl")
        with pytest.raises(InputError, match="another process is training in"):
            run(small_plan(tmp_path), tmp_path / "run", resume="auto")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == cli.STOPPED == 3, err
    ((step, path),) = checkpoint.found(tmp_path / "run" / "checkpoints")
    assert checkpoint.load(path).step == step == lines(tmp_path / "run")[-1]["step"]
    assert f"stopped at step {step} of 1000000 by SIGTERM; " in out
    assert "SIGTERM: saving at the next step; again to stop at once" in err


# Preparing data


def test_the_standard_library_becomes_a_folder_of_text(tmp_path: Path, capsys) -> None:
    source = tmp_path / "lib"
    (source / "email").mkdir(parents=True)
    (source / "site-packages").mkdir()
    (source / "os.py").write_text("import sys\n")
    (source / "email" / "base.py").write_text("# é\n", encoding="utf-8")
    (source / "old.py").write_bytes(b"# -*- coding: latin-1 -*- \xe9\n")
    (source / "site-packages" / "other.py").write_text("x = 1\n")
    assert prepare.stdlib_text(tmp_path / "out", source=source) == (2, 16)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["email-base.py.txt", "os.py.txt"]
    (tmp_path / "out" / "notes").write_text("again, it is replaced whole")
    assert prepare.stdlib_text(tmp_path / "out", source=source) == (2, 16)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_text_becomes_shards_that_train(build: Path, capsys) -> None:
    assert prepare.main(["shards", "text.txt", "shards"]) == 0
    assert f"{len(TEXT) + 1:,} tokens, vocabulary 256" in capsys.readouterr().out
    assert cli.main([str(build), "--data", "shards", "--sample", "0"]) == 0
    assert cli.main([str(build), "--run", "text", "--sample", "0"]) == 0
    assert lines(Path("runs/small-cpu")) == lines(Path("text"))


def test_preparing_never_replaces_what_is_not_its_own(build: Path, capsys) -> None:
    for arguments in (["shards", "text.txt", "build"], ["stdlib", "build"]):
        assert prepare.main(arguments) == 2
        assert "build holds something else and is left as it is" in capsys.readouterr().err
    Path("empty").mkdir()
    for out in ("empty/..", "/"):
        assert prepare.main(["stdlib", out]) == 2
        assert "cannot be replaced as a whole" in capsys.readouterr().err
    assert prepare.main(["shards", "nowhere", "out"]) == 2
    assert not Path("out").exists()
