"""What would fit: the nearest changes of a spec after which training or serving fits.

Every change is verified by the estimate that refused the spec. Nothing here runs unless asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from gptoss_builder.errors import TargetError
from gptoss_builder.plan.counts import count_kv_cache
from gptoss_builder.plan.fit import periods, training_memory
from gptoss_builder.plan.memory import estimate_memory
from gptoss_builder.plan.resolve import decide
from gptoss_builder.plan.schema import MemoryEstimate, Plan
from gptoss_builder.spec.schema import Spec, TrainingSpec
from gptoss_builder.targets import CARDS, Target

GIB = 2**30
FARTHEST = 8
"""Part of the context, one in so many, below which a context is offered only if nothing else is."""
SHORTEST_CHUNK = 512
"""Rows of the loss at once below which no chunk is offered: its products become too small."""
_NEAR = 10_000
"""Micro-batches, from the largest that fits down, among which a divisor is looked for."""

Setting = tuple[str, int | str]
"""A field in dots, and what to set it to."""
Section = TypeVar("Section", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Change:
    """What to set, all of it, so that it fits."""

    settings: tuple[Setting, ...]
    """The fields, each with its value."""
    total_bytes: int
    """What is then needed: reserved peak and context."""


def training_changes(plan: Plan, available: int) -> tuple[Change, ...]:
    """Changes after which training needs at most `available` bytes, the mildest of each kind.

    The largest loss chunk; the largest micro-batch, a step's tokens staying as they are;
    `backward: recompute`; the checkpoint period of fewest layers; the longest context; the
    smallest card. Where none of the first four is enough by itself, a period and a micro-batch
    together, and where these are not, all at their least with a context. A context of less than
    one eighth trains another model, and is left out beside any other change.
    """
    training = plan.spec.training
    if training is None:
        return ()
    search = _Search(plan, _training, available)
    alone = [
        search.largest("training.loss_chunk", training.loss_chunk, least=SHORTEST_CHUNK),
        _batch(search, training),
        search.change(("model.moe.backward", "recompute")),
        _longest_period(search, training),
    ]
    if not any(alone):
        alone = [_period_and_batch(search, training)]
    context = _context(search, training.context, "training", _least(training), first=not any(alone))
    card = _card(plan, _training, plan.memory.training)
    return _near((*alone, context, card), training.context)


def serving_changes(plan: Plan, available: int) -> tuple[Change, ...]:
    """Changes after which serving needs at most `available` bytes, the mildest of each kind.

    The largest batch, the longest context, with a batch of 1 where no batch is enough, and the
    smallest card; of short contexts as for training.
    """
    inference = plan.spec.inference
    if inference is None:
        return ()
    search = _Search(plan, _serving, available)
    batch = search.largest("inference.batch", inference.batch)
    one: tuple[Setting, ...] = (("inference.batch", 1),)
    context = _context(search, inference.context, "inference", one, first=batch is None)
    card = _card(plan, _serving, plan.memory.inference)
    return _near((batch, context, card), inference.context)


Needs = Callable[[Plan, Spec, Target], int]
"""Bytes that a spec of the plan's model needs on a card, reserved peak and context."""


def _training(plan: Plan, spec: Spec, target: Target) -> int:
    return training_memory(plan, spec, target).total_bytes


def _serving(plan: Plan, spec: Spec, target: Target) -> int:
    execution = decide(spec, target)  # the training's precision counts here
    cache = count_kv_cache(spec, execution.precision)
    serving = spec.model_copy(update={"training": None})
    memory = estimate_memory(serving, execution, plan.parameters, cache)
    return memory.inference.total_bytes if memory.inference is not None else 0


class _Search(NamedTuple):
    """Tries settings on the plan's own card."""

    plan: Plan
    needs: Needs
    available: int

    def change(self, *settings: Setting) -> Change | None:
        """These settings, if they fit."""
        spec = self.plan.spec
        for field, value in settings:
            spec = _set(spec, field, value)
        total = self.needs(self.plan, spec, self.plan.target)
        return Change(settings, total) if total <= self.available else None

    def largest(self, field: str, now: int, *others: Setting, least: int = 1) -> Change | None:
        """The largest value of a field from `least` to below `now` that fits, with the others."""
        value = _last_that(lambda value: self.change((field, value), *others) is not None, now - 1)
        return self.change((field, value), *others) if value >= least else None


def _set(section: Section, field: str, value: int | str) -> Section:
    name, _, rest = field.partition(".")
    inner = _set(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: inner})


def _last_that(fits: Callable[[int], bool], high: int) -> int:
    """The largest value of 1 … `high` that fits, 0 if none; what is smaller than one fits too."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _batch(search: _Search, training: TrainingSpec, *others: Setting) -> Change | None:
    """The largest smaller micro-batch that fits and divides the sequences of a step."""
    step = training.micro_batch * training.accumulate

    def settings(batch: int) -> tuple[Setting, ...]:
        more = -(-step // batch)
        return (*others, ("training.micro_batch", batch), ("training.accumulate", more))

    def fits(batch: int) -> bool:
        return search.change(*settings(batch)) is not None

    most = _last_that(fits, training.micro_batch - 1)
    near = range(most, max(most - _NEAR, 0), -1)
    batch = next((batch for batch in near if step % batch == 0), min(most, 1))
    return search.change(*settings(batch)) if batch else None


def _shorter(training: TrainingSpec, layers: int) -> tuple[int, ...]:
    """The checkpoint periods that recompute more layers than the spec's, longest first."""
    now = training.checkpoint_every or layers + 1
    return tuple(every for every in periods(layers) if every < now)


def _longest_period(search: _Search, training: TrainingSpec) -> Change | None:
    for every in _shorter(training, search.plan.spec.model.layers):
        change = search.change(("training.checkpoint_every", every))
        if change is not None:
            return change
    return None


def _period_and_batch(search: _Search, training: TrainingSpec) -> Change | None:
    if search.change(*_least(training)) is None:
        return None
    for every in _shorter(training, search.plan.spec.model.layers):
        change = _batch(search, training, ("training.checkpoint_every", every))
        if change is not None:
            return change
    return None


def _least(training: TrainingSpec) -> tuple[Setting, ...]:
    """A micro-batch of 1 and all layers checkpointed, where the spec has more."""
    settings: list[Setting] = []
    if training.micro_batch > 1:
        step = training.micro_batch * training.accumulate
        settings += [("training.micro_batch", 1), ("training.accumulate", step)]
    if training.checkpoint_every != 1:
        settings.append(("training.checkpoint_every", 1))
    return tuple(settings)


def _card(plan: Plan, needs: Needs, estimate: MemoryEstimate | None) -> Change | None:
    """The smallest card with more memory than the plan's on which its spec fits."""
    margin = int(plan.spec.target.margin_gib * GIB)
    if estimate is None or estimate.total_bytes + margin <= plan.target.memory_bytes:
        return None  # its own card is large enough; something else takes the room there
    for card in sorted(CARDS.values(), key=lambda card: card.memory_bytes):
        if card.memory_bytes > plan.target.memory_bytes:
            try:
                total = needs(plan, plan.spec, card)
            except TargetError:
                continue  # it cannot run what the spec asks for
            if total + margin <= card.memory_bytes:
                return Change((("target.gpu", card.name),), total)
    return None


def _context(
    search: _Search, now: int, section: str, least: tuple[Setting, ...], *, first: bool
) -> Change | None:
    """The longest context; if it is the `first` that fits and far, the longest with the `least`."""
    alone = search.largest(f"{section}.context", now)
    if not first or (alone is not None and not _far(alone, now)):
        return alone
    return search.largest(f"{section}.context", now, *least)


def _far(change: Change, now: int) -> bool:
    field, value = change.settings[0]
    return field.endswith(".context") and isinstance(value, int) and value * FARTHEST < now


def _near(found: tuple[Change | None, ...], now: int) -> tuple[Change, ...]:
    """What was found, without a context that is far from the spec's if there is anything else."""
    changes = tuple(change for change in found if change is not None)
    return tuple(change for change in changes if not _far(change, now)) or changes
