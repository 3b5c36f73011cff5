"""Reading back what `gptoss-build` wrote, and holding it to its own spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gptoss_builder.build_directory import launch_text
from gptoss_builder.errors import ArtifactError, InputError
from gptoss_builder.findings import leaves
from gptoss_builder.pipeline import plan_again
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.plan.schema import Plan
from gptoss_builder.spec.load import load_spec

DECISIONS = ("execution", "launch", "parameters")
"""What of a plan a training depends on; its estimates are made anew when it is read."""

_AGAIN = "build it again with gptoss-build"
_BUILD_AGAIN = f"change the spec that you built from, and {_AGAIN}"


def read_build(directory: Path) -> Plan:
    """The plan of a build directory, if no decision in there was edited.

    A plan that was edited by hand would otherwise train something that no rule has seen; what is
    edited beside it would have no effect, in silence. Memory, cost and the card's figures are
    this version's, so a build outlives a better estimate.

    Raises:
        InputError: `directory` is a file.
        ArtifactError: there is no plan, it decides otherwise than this version, or spec.yaml or
            launch.json is missing or does not say what the plan says.
    """
    if directory.is_file():
        raise InputError(
            f"{directory} is a file; name the folder that gptoss-build wrote (for a spec, run "
            f"gptoss-build {directory} first)"
        )
    plan = read_plan(directory / "plan.json")
    made = _made_again(plan, directory / "plan.json")
    _require_same_spec(plan, directory / "spec.yaml")
    _require_same_launch(plan, directory / "launch.json")
    return made


def _made_again(plan: Plan, path: Path) -> Plan:
    """The plan that this version makes of the spec; its decisions must be those of `plan`.

    `--data` may replace the data, and the trainer looks at those that it uses.
    """
    try:
        again = plan_again(plan.spec, target=plan.target.name)
    except InputError as error:
        raise ArtifactError(
            f"{path} holds a spec that this version refuses: {_first_line(error)}; mend the spec "
            f"and {_AGAIN}"
        ) from error
    again = again.model_copy(update={"kernel_build": plan.kernel_build})
    decided, today = (
        each.model_dump(mode="json", include=set(DECISIONS)) for each in (plan, again)
    )
    differing = _differences(decided, today)
    if differing:
        field, have, now = differing[0]
        raise ArtifactError(
            f"{path} is not what this version makes of its spec: {field} is {have}, not {now} "
            f"({len(differing)} differ); {_AGAIN}"
        )
    return again


def _first_line(error: InputError) -> str:
    return str(error).partition("\n")[0]


def _require_same_spec(plan: Plan, path: Path) -> None:
    try:
        written = load_spec(path)
    except InputError as error:
        raise ArtifactError(f"{_first_line(error)}; {_BUILD_AGAIN}") from error
    differing = _differences(*(each.model_dump(mode="json") for each in (written, plan.spec)))
    if differing:
        field, have, planned = differing[0]
        raise ArtifactError(
            f"{path} is not what plan.json was made of: {field} is {have} there and {planned} in "
            f"the plan ({len(differing)} differ); {_BUILD_AGAIN}"
        )


def _require_same_launch(plan: Plan, path: Path) -> None:
    try:
        same = json.loads(path.read_bytes()) == json.loads(launch_text(plan))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}; {_AGAIN}") from error
    except (ValueError, RecursionError):  # no JSON
        same = False
    if not same:
        raise ArtifactError(f"{path} is not the launch configuration of the plan; {_BUILD_AGAIN}")


def _differences(
    one: Mapping[str, object], other: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    """Dotted fields whose values differ, with both values."""
    ours, theirs = dict(leaves(one)), dict(leaves(other))
    fields = sorted(ours.keys() | theirs.keys())
    return [
        (field, ours.get(field), theirs.get(field))
        for field in fields
        if ours.get(field) != theirs.get(field)
    ]
