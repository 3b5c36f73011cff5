"""What every command shares: one line and an exit code for whatever goes wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable
from importlib import import_module

import pytest

from gptoss_builder.cli.command import run_command
from gptoss_builder.errors import InputError, RunError


def raising(error: BaseException) -> Callable[..., int]:
    def body(*_: object, **__: object) -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("no such card"), 2, "x: no such card"),
        (RunError("it diverged"), 1, "x: it diverged"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "x: [Errno 28] No space left on "),
        (KeyboardInterrupt(), 130, "x: interrupted"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert run_command("x", raising(error)) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(line)
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        run_command("x", raising(KeyError("a bug")))


@pytest.mark.parametrize(
    ("command", "step", "arguments"),
    [
        ("build", "check", ["spec.yaml"]),
        ("check", "collect", ["spec.yaml"]),
        ("train", "read_build", ["build"]),
        ("bench", "smoke", ["smoke"]),
        ("prepare", "load_tokenizer", ["shards", "text", "out"]),
    ],
)
def test_every_command_meets_a_full_disk_and_ctrl_c_alike(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    step: str,
    arguments: list[str],
) -> None:
    module = import_module(f"gptoss_builder.cli.{command}")
    name = f"gptoss-{command}"
    for error, code, told in (
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ):
        monkeypatch.setattr(module, step, raising(error))
        assert module.main(arguments) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{name}: ")
        assert line.endswith(told)
