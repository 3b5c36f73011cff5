"""What the documentation says about checking is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from checkers.output import FORMATS
from gptoss_builder.cli.check import main
from gptoss_builder.pipeline import check
from tests.checkers.samples import SAMPLE, edited

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def test_first_example_is_the_real_output(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "specs"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(SAMPLE)
    (folder / "mine.yaml").write_text(edited(SAMPLE, ("top_k: 2", "top_k: 6")))
    monkeypatch.chdir(tmp_path)
    command, _, output = BLOCKS[0][1].partition("\n")
    assert main(shlex.split(command)[2:]) == 1
    assert capsys.readouterr().out == output


def test_every_option_is_documented(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    for option in re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out):
        assert option == "--help" or option in PAGE
    assert all(f"`{name}`" in PAGE for name in FORMATS)


def test_yaml_blocks_are_yaml():
    for language, block in BLOCKS:
        if language == "yaml":
            yaml.safe_load(block)


def test_suppression_example_is_accepted():
    (block,) = (block for _, block in BLOCKS if block.startswith("suppress"))
    advised = edited(
        SAMPLE, ("layers: 4", "layers: 12"), ("training:\n", "training:\n  checkpoint_every: 5\n")
    )
    checked = check("x.yaml", text=advised + block)
    assert (checked.findings, checked.suppressed) == ((), 1)


def test_hooks_run_a_command_that_exists():
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")):
        assert hook["entry"] in scripts["scripts"]
