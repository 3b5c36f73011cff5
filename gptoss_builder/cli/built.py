"""Reading back what `gptoss-build` wrote, and holding it to its own spec."""

from __future__ import annotations

from pathlib import Path

from gptoss_builder.errors import ArtifactError, InputError
from gptoss_builder.findings import leaves
from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.plan.schema import Plan

SET_LATER = frozenset({"kernel_build", "cost.price", "cost.price_per_hour"})
"""Fields of a plan that do not come from its spec."""


def read_build(directory: Path) -> Plan:
    """The plan of a build directory, if it is what its own spec comes to.

    A plan that was edited by hand would otherwise train something that no rule has seen, on
    estimates of something else.

    Raises:
        InputError: `directory` is a file.
        ArtifactError: there is no plan, or it is not what this version makes of its spec.
    """
    if directory.is_file():
        raise InputError(
            f"{directory} is a file; name the folder that gptoss-build wrote (for a spec, run "
            f"gptoss-build {directory} first)"
        )
    path = directory / "plan.json"
    plan = read_plan(path)
    try:
        again = make_plan(plan.spec, target=plan.target.name)
    except InputError as error:
        raise ArtifactError(
            f"{path} holds a spec that this version refuses: {error}; mend the spec and build it "
            "again with gptoss-build"
        ) from error
    have, made = (dict(leaves(each.model_dump(mode="json"))) for each in (plan, again))
    fields = sorted((have.keys() | made.keys()) - SET_LATER)
    differing = [field for field in fields if have.get(field) != made.get(field)]
    if differing:
        first = differing[0]
        raise ArtifactError(
            f"{path} is not what this version makes of its spec: {first} is {have.get(first)}, not "
            f"{made.get(first)} ({len(differing)} differ); build it again with gptoss-build"
        )
    return plan
