"""What training costs in words: on each card of the table, and on what assumptions."""

from __future__ import annotations

from typing import NamedTuple

from gptoss_builder.errors import InputError, TargetError
from gptoss_builder.plan.cost import estimate_cost
from gptoss_builder.plan.counts import count_flops
from gptoss_builder.plan.launch import judge, of_spec
from gptoss_builder.plan.memory import training_peak
from gptoss_builder.plan.resolve import decide
from gptoss_builder.plan.schema import Cost, Plan
from gptoss_builder.targets import CARDS, Target

GIB = 2**30
_TERA = 1e12
PREDICTED_FROM = {
    "measured": "rates measured on it",
    "derived": "its rates, at an H200's efficiency",
    "bound": "its full rates where none was measured: a bound",
}
"""What `Cost.source` means, in words."""


class CardCost(NamedTuple):
    """What one card needs for the whole training."""

    card: str
    cost: Cost | None
    """None where the card cannot run what the spec asks for."""
    problem: str
    """Why not, or that training does not fit; "" where nothing is in the way."""


def card_costs(plan: Plan, *, price_per_hour: float | None = None) -> tuple[CardCost, ...]:
    """Cost of the plan's training on every card, in the order of the table."""
    cards = (card for card in CARDS.values() if card.arch != "cpu")
    return tuple(_on(plan, card, price_per_hour) for card in cards)


def _on(plan: Plan, card: Target, price_per_hour: float | None) -> CardCost:
    spec = plan.spec
    try:
        execution = decide(spec, card)
    except TargetError as error:
        return CardCost(card.name, None, str(error))
    if spec.kernel != "auto" and execution.up_products == "triton":
        problems = judge(of_spec(spec.kernel), card.arch, execution.precision)
        if problems:
            return CardCost(card.name, None, f"kernel: {'; '.join(problems)}")
    flops = count_flops(spec, execution)
    cost = estimate_cost(
        spec, card, execution, plan.parameters, flops, price_per_hour=price_per_hour
    )
    needed = training_peak(spec, execution, plan.parameters).total_bytes
    room = card.memory_bytes - int(spec.target.margin_gib * GIB)
    problem = "" if needed <= room else f"does not fit: needs {needed / GIB:.1f} GiB"
    return CardCost(card.name, cost, problem)


def cost_lines(plan: Plan, *, price_per_hour: float | None = None) -> str:
    """The table over cards, then the parts of a step on the plan's own card.

    Every time is predicted, and each row says from what; a bound is what it takes at least. Hours
    and price are of the whole run: one price an hour, whatever the card.

    Raises:
        InputError: the spec has no training section.
    """
    training = plan.spec.training
    if training is None:
        raise InputError(f"{plan.spec.name} has no training section, so there is no cost to tell")
    tokens = training.micro_batch * training.context * training.accumulate
    lines = [
        f"{plan.spec.name}: {training.steps:,} steps of {tokens:,} tokens",
        f"{'card':<11}{'ms a step':>11}{'tokens/s':>11}{'GPU-hours':>11}{'price':>12}"
        "  predicted from",
        *(_card_line(row) for row in card_costs(plan, price_per_hour=price_per_hour)),
    ]
    if plan.cost is None:
        return "\n".join([*lines, f"{plan.target.name}: nothing is assumed about its speed"])
    return "\n".join([*lines, "", *_assumptions(plan, plan.cost)])


def _card_line(row: CardCost) -> str:
    if row.cost is None:
        return f"{row.card:<11}  {row.problem}"
    cost = row.cost
    price = "" if cost.price is None else _short(cost.price)
    note = f"; {row.problem}" if row.problem else ""
    return (
        f"{row.card:<11}{cost.step_seconds * 1e3:>11,.1f}{cost.tokens_per_second:>11,.0f}"
        f"{_short(cost.gpu_hours):>11}{price:>12}  {PREDICTED_FROM[cost.source]}{note}"
    )


def _short(amount: float) -> str:
    """Two digits at least: what a run of minutes costs is not 0."""
    return (
        f"{amount:,.0f}" if amount >= 100 else f"{amount:.1f}" if amount >= 1 else f"{amount:.2g}"
    )


def _assumptions(plan: Plan, cost: Cost) -> list[str]:
    """Every part: its time, its work, and the part of the card's rate that is assumed."""
    run = plan.execution
    lines = [
        f"a step on {plan.target.name}, {run.dispatch}, backward {run.backward}, "
        f"{len(run.checkpointed_layers)} layers checkpointed: "
        f"MFU {cost.model_flops_utilization:.1%}",
        f"{'part':<42}{'ms':>9}{'TFLOP':>9}{'GB':>9}{'reached':>9}  evidence",
    ]
    for item in sorted(cost.items, key=lambda item: -item.seconds):
        flops = f"{item.flops / _TERA:.2f}" if item.flops else ""
        moved = f"{item.bytes / 1e9:.1f}" if item.bytes else ""
        reached = f"{item.efficiency:.0%}" if flops or moved else ""
        lines.append(
            f"{item.name:<42}{item.seconds * 1e3:>9.2f}{flops:>9}{moved:>9}{reached:>9}"
            f"  {item.evidence}"
        )
    return lines
