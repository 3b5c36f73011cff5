from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from checkers.wording import either, multiples_near
from gptoss_builder.spec.schema import HARD_CAP, Spec

MULTIPLE = 8


@partial(
    SpecRule,
    code="MO003",
    title="grouped dispatch has d_model and d_ff in multiples of 8",
    why="Grouped products read rows in pieces of 16 bytes, 8 bf16 numbers; a row that is not a "
    "multiple of that is refused by grouped_mm and loses the kernel's fast loads.",
    bad="model: {d_model: 100, moe: {d_ff: 256, dispatch: triton_grouped}}",
    good="model: {d_model: 96, moe: {d_ff: 256, dispatch: triton_grouped}}",
    reads=("model.d_model", "model.moe.d_ff", "model.moe.dispatch"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    dispatch = spec.model.moe.dispatch
    if dispatch == "stacked":
        return
    widths = {"model.d_model": spec.model.d_model, "model.moe.d_ff": spec.model.moe.d_ff}
    for field, width in widths.items():
        if width % MULTIPLE:
            near = either(multiples_near(width, MULTIPLE, HARD_CAP))
            yield Problem(
                field,
                f"{field} is {width}, and dispatch {dispatch} needs a multiple of {MULTIPLE}",
                f"set it to {near}, or dispatch to stacked",
            )
