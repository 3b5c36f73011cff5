"""Time of gptoss-check on many specs, beside check-jsonschema on the same files and our schema.

    python -m benchmarks.check [--specs 200] [--repeat 5] [--check-jsonschema PATH]

Each run is a fresh process. First both tools must pass all files, and each must refuse a bad
one; then they are timed in turn. `pip install check-jsonschema` brings the other tool.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import positive

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "docs" / "spec.schema.json"


def main() -> int:
    """Check both tools, time them, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--specs", type=positive, default=200)
    parser.add_argument("--repeat", type=positive, default=5)
    parser.add_argument("--check-jsonschema", default=shutil.which("check-jsonschema"))
    options = parser.parse_args()
    if options.check_jsonschema is None:
        print("check-jsonschema is not here: pip install check-jsonschema", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        files = write_specs(Path(folder), options.specs)
        commands = {
            "gptoss-check": [sys.executable, "-m", "gptoss_builder.cli.check", folder],
            "check-jsonschema": [options.check_jsonschema, "--schemafile", str(SCHEMA), *files],
        }
        require_sound(commands, Path(folder))
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.repeat):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
                times[name].append(time.perf_counter() - start)
    print(f"{options.specs} specs, fresh process, {os.cpu_count()} cores, seconds\n")
    print("| tool | median | best |\n|---|---|---|")
    for name, taken in times.items():
        print(f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} |")
    return 0


def write_specs(folder: Path, count: int) -> list[str]:
    """Copies of the shipped specs, in turn, each with a name of its own."""
    shipped = sorted((ROOT / "specs").glob("*.yaml"))
    files = []
    for index in range(count):
        text = shipped[index % len(shipped)].read_text(encoding="utf-8")
        path = folder / f"{index}.yaml"
        path.write_text(text.replace("\nname: ", f"\nname: n{index}_", 1), encoding="utf-8")
        files.append(str(path))
    return files


def require_sound(commands: dict[str, list[str]], folder: Path) -> None:
    """Stop unless each tool passes the specs and refuses one with a misspelt key."""
    bad = folder / "0.yaml"
    good = bad.read_text(encoding="utf-8")
    for name, command in commands.items():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} refuses good specs:\n{done.stdout}{done.stderr}")
        bad.write_text(good.replace("layers:", "layrs:", 1), encoding="utf-8")
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        bad.write_text(good, encoding="utf-8")
        if not refused.returncode:
            raise SystemExit(f"{name} passes a misspelt key")


if __name__ == "__main__":
    sys.exit(main())
