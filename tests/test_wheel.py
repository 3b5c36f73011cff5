"""The wheel, installed where there is no checkout and no torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.mark.slow
def test_the_core_install_checks_its_own_examples(tmp_path: Path) -> None:
    # A copy, since building a wheel leaves files in the tree that it reads.
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "runs", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(tree)]
    subprocess.run(pip, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    binaries = tmp_path / "venv" / "bin"
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run([str(binaries / "pip"), "install", "-q", str(wheel)], check=True)

    example = run(binaries / "gptoss-build", "--example", "gpt_oss_lite", folder=tmp_path)
    assert example.returncode == 0, example.stderr
    (tmp_path / "spec.yaml").write_text(example.stdout, encoding="utf-8")
    checked = run(binaries / "gptoss-check", "spec.yaml", "--format", "json", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    explained = run(binaries / "gptoss-check", "--explain", "MO001", folder=tmp_path)
    assert "MO001" in explained.stdout

    built = run(binaries / "gptoss-build", "spec.yaml", folder=tmp_path)
    assert built.returncode == 2
    assert "pip install '.[train]'" in built.stderr
    assert not (tmp_path / "build").exists()
    typed = tmp_path / "venv" / "lib"
    assert len(list(typed.rglob("py.typed"))) >= 2
