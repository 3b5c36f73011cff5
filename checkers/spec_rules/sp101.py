from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.errors import TargetError
from gptoss_builder.findings import Edit
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, CARDS, lookup


@partial(
    SpecRule,
    code="SP101",
    title="the card is one that is known",
    why="Memory, bandwidth and launch limits come from a table; for a card that is not in it "
    "nothing can be promised.",
    bad="target: {gpu: a100-80}",
    good="target: {gpu: a100-80gb}",
    reads=("target.gpu",),
)
def rule(spec: Spec) -> Iterator[Problem]:
    try:
        lookup(spec.target.gpu)
    except TargetError as error:
        message, _, suggestion = str(error).partition("; ")
        near = _meant(spec.target.gpu)
        yield Problem(
            "target.gpu",
            message,
            suggestion or "name a card of the table",
            Edit(spec.target.gpu, near) if near is not None else None,
        )


def _meant(name: str) -> str | None:
    """The one known name that starts as this one does, spaces and hyphens apart."""
    plain = _plain(name)
    near = [known for known in (*CARDS, *ARCHITECTURES) if _plain(known).startswith(plain)]
    return near[0] if plain and len(near) == 1 else None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
