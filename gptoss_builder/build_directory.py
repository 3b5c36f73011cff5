"""The build directory: what `gptoss-build` writes and `gptoss-train` reads.

The same spec, versions and target give the same bytes: nothing inside names a time, a host
or an absolute path, unless the spec itself does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from gptoss_builder.errors import InputError
from gptoss_builder.files import new_directory
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.data_paths import with_data_paths
from gptoss_builder.spec.schema import Spec

CONTENTS = frozenset({"spec.yaml", "plan.json", "launch.json", "kernels", "report.html"})
"""Names that a build directory can hold; a folder with anything else in it is not ours."""


def default_directory(plan: Plan) -> Path:
    """`build/<name>-<target>`, in the current directory."""
    return Path("build") / f"{plan.spec.name}-{plan.spec.target.gpu}"


def with_data_paths_from_here(spec: Spec, spec_directory: Path) -> Spec:
    """Rewrite relative data paths, which start at the spec's folder, to start at the current one.

    A build has no place of its own that it could name without naming this machine, so its
    paths are relative to where `gptoss-build` ran; `gptoss-train` is run from there, or is
    told with `--data`.

    Raises:
        InputError: as `with_data_paths`.
    """
    # `..` beside a link leads out of what it links to, which relpath, going by names, cannot know
    folder = spec_directory.resolve()
    return with_data_paths(spec, lambda path: os.path.relpath(folder / path))


def refuse_foreign(directory: Path) -> None:
    """Raise unless `directory` is absent, empty or a build of ours.

    Raises:
        InputError: it is a file, a link, a folder that this project did not write, or one that
            cannot be replaced because its path does not name it.
    """
    if directory.name in {"", ".."}:
        raise InputError(
            f"{directory} cannot be replaced as a whole; name a folder in it with --out"
        )
    if not directory.exists() and not directory.is_symlink():
        return
    if directory.is_symlink() or not directory.is_dir():
        raise InputError(f"{directory} is not a folder; choose another place with --out")
    names = {entry.name for entry in directory.iterdir()}
    if not names:
        return
    if "plan.json" not in names or not names <= CONTENTS:
        strangers = ", ".join(sorted(names - CONTENTS)[:3]) or "no plan.json"
        raise InputError(
            f"{directory} is not a build directory of ours ({strangers}) and is left as it is; "
            "choose another place with --out"
        )


def write_build(plan: Plan, directory: Path, kernels: Mapping[str, bytes]) -> None:
    """Write a build directory, whole or not at all.

    Args:
        plan: the plan; its data paths must already be what the reader should use.
        directory: where; replaced if it holds an older build.
        kernels: files of the `kernels` folder by name.

    Raises:
        InputError: `directory` holds something else.
        OSError: it cannot be written; what was there stays.
    """
    refuse_foreign(directory)
    with new_directory(directory) as fresh:
        _write(fresh / "spec.yaml", _spec_text(plan.spec).encode())
        _write(fresh / "plan.json", _json_text(plan.model_dump(mode="json")).encode())
        _write(fresh / "launch.json", launch_text(plan).encode())
        for name, content in sorted(kernels.items()):
            _write(fresh / "kernels" / name, content)


def launch_text(plan: Plan) -> str:
    """The content of `launch.json`: the launch configuration of the W1/W3 kernel, or null."""
    return _json_text(plan.launch.model_dump(mode="json") if plan.launch is not None else None)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def _json_text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _spec_text(spec: Spec) -> str:
    values = spec.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
