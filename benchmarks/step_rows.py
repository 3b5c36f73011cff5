"""Which training steps are timed: names of rows, shapes, plans. Imports no torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.fit import fastest_period, room
from gptoss_builder.plan.schema import Plan

SPECS = Path(__file__).parent.parent / "specs"
Backward = Literal["recompute", "save"]
BACKWARDS: tuple[Backward, ...] = ("recompute", "save")
ADVISED = "auto"
"""In place of a period: the period and backward of fewest FLOPs that the plan says fit."""
ALTERNATIVES = ("hf", "hf-as-is", "hf-bf16")


@dataclass(frozen=True)
class Shape:
    """A shipped spec and what differs from it, by section."""

    spec: str
    model: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, Any] = field(default_factory=dict)
    moe: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


_BATCH = {"micro_batch": 8, "context": 4096}
SHAPES = {
    "lite": Shape("gpt_oss_lite", training=_BATCH),
    "fine": Shape(  # fine-grained: 64 experts, top-8
        "gpt_oss_lite",
        model={"d_model": 1024},
        attention={"heads": 16, "kv_heads": 4, "head_dim": 64},
        moe={"experts": 64, "top_k": 8, "d_ff": 384},
        training=_BATCH,
    ),
    "2.4b": Shape(
        "gpt_oss_lite",
        model={"d_model": 1536, "layers": 20, "vocab": 64000},
        attention={"heads": 16, "kv_heads": 4, "head_dim": 96},
        moe={"experts": 16, "top_k": 2, "d_ff": 1408},
        training=_BATCH,
    ),
    "long": Shape("gpt_oss_lite", training={"micro_batch": 1, "context": 65536}),
    "smoke": Shape("gpt_oss_smoke"),
    "tiny": Shape("tiny"),
}
DEFAULT_ROWS = (
    *(f"{shape}:{every}" for shape in ("lite", "fine", "2.4b") for every in (0, 3, 1)),
    "smoke:1",
    "tiny:0",
    *ALTERNATIVES,
)


@dataclass(frozen=True)
class Row:
    """One row of the table: `lite:3:save`, or an alternative: `hf:fine`."""

    name: str
    shape: str
    alternative: str = ""
    """One of `ALTERNATIVES`; "" for this project's trainer."""
    period: int | None = 0
    """Checkpoint period; None for what the plan advises."""
    backward: Backward = "recompute"


def parse_row(text: str) -> Row:
    """Read `SHAPE[:PERIOD[:BACKWARD]]`, or `ALTERNATIVE[:SHAPE]`.

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    head, *rest = text.split(":")
    if head in ALTERNATIVES:
        shape = rest.pop(0) if rest else "lite"
        if shape in SHAPES and not rest:
            return Row(text, shape, alternative=head)
    elif head in SHAPES:
        period = rest.pop(0) if rest else "0"
        backward = rest.pop(0) if rest else BACKWARDS[0]
        known = period == ADVISED or (period.isascii() and period.isdecimal())
        if known and backward in BACKWARDS and not rest:
            every = None if period == ADVISED else int(period)
            return Row(text, head, period=every, backward=backward)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no row; write SHAPE[:PERIOD[:BACKWARD]] or ALTERNATIVE[:SHAPE] with SHAPE of "
        f"{', '.join(SHAPES)}; PERIOD a number or {ADVISED}; BACKWARD of {', '.join(BACKWARDS)}; "
        f"ALTERNATIVE of {', '.join(ALTERNATIVES)}"
    )


def plan_of(
    row: Row, *, target: str, dispatch: str | None = None, compiled: bool | None = None
) -> Plan:
    """The plan of a row, one micro-batch a step; what is None stays as the shape's spec has it.

    Raises:
        SpecError: the shape is not legal on the target, or does not fit it.
        TargetError: the target is not in the table.
    """
    values = _values(row.shape)
    values["model"]["moe"]["backward"] = row.backward
    values["training"]["checkpoint_every"] = 1 if row.period is None else row.period
    if dispatch is not None:
        values["model"]["moe"]["dispatch"] = dispatch
    if compiled is not None:
        values["training"]["compile"] = compiled
    plan = make_plan(values, target=target)
    if row.period is not None:
        return plan
    best = fastest_period(plan, room(plan))
    assert best is not None  # period 1 fits, so a row of the table does
    values["training"]["checkpoint_every"] = best.every
    values["model"]["moe"]["backward"] = best.backward
    return make_plan(values, target=target)


def _values(name: str) -> dict[str, Any]:
    shape = SHAPES[name]
    values: dict[str, Any] = yaml.safe_load(
        (SPECS / f"{shape.spec}.yaml").read_text(encoding="utf-8")
    )
    values["name"] = f"bench-{name}"
    values["model"] |= shape.model
    values["model"]["attention"] |= shape.attention
    values["model"]["moe"] |= shape.moe
    values["training"] |= shape.training | {"accumulate": 1}
    return values


def plain(plan: Plan, context: int) -> Plan:
    """The same model in fp32: per-expert loop, explicit softmax, nothing compiled."""
    values = plan.spec.model_dump(mode="json", exclude_none=True)
    values["model"]["moe"]["dispatch"] = "stacked"
    values["model"]["attention"]["backend"] = "math"
    values["kernel"] = "auto"
    values["training"] |= {
        "precision": "fp32",
        "compile": False,
        "micro_batch": 1,
        "context": context,
        "checkpoint_every": 0,
    }
    return make_plan(values, target=plan.target.name)
