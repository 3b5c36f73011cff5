"""The console scripts: they start what they name, and Ctrl-C may come at any time."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from gptoss_builder import __version__
from gptoss_builder.cli import start

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = ("build", "check", "train", "generate", "prepare", "bench")
INTERRUPTED_IMPORT = """
import os, signal, sys
from gptoss_builder.cli import start

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "gptoss_builder.errors":  # every command imports it
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(start.{command}())
"""


def test_every_script_of_the_project_is_one_of_them() -> None:
    assert PROJECT["scripts"] == {
        f"gptoss-{command}": f"gptoss_builder.cli.start:{command}" for command in COMMANDS
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_it_starts_the_command_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--help"])
    with pytest.raises(SystemExit, match="0"):
        getattr(start, command)()
    assert capsys.readouterr().out.startswith(f"usage: gptoss-{command} ")


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_during_the_imports_is_no_traceback(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT.format(command=command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", [*COMMANDS, "prepare"])
def test_every_command_tells_the_version_of_the_project(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"gptoss_builder.cli.{command}").main(["--version"])
    assert capsys.readouterr().out == f"gptoss-builder {__version__}\n"
    assert PROJECT["version"] == __version__
