"""The memory guard at the start of training, held to a GPU whose figures the test sets."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gptoss_builder.errors import DeviceError
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.plan.schema import Plan
from gptoss_builder.targets import lookup
from gptoss_builder.train import allocator, loop
from gptoss_builder.train.device import require_memory
from tests.plan.specs import lite

GIB = 2**30
CUDA = torch.device("cuda", 0)


@dataclass
class Card:
    """What torch says of a GPU that is not there."""

    total: int = 140 * GIB
    others: int = 0
    context: int = 0
    """Loaded so far."""
    reserved: int = 0
    allocated: int = 0
    fraction: float = 1.0
    readable: bool = True

    def info(self, _: object) -> tuple[int, int]:
        if not self.readable:
            raise RuntimeError("CUDA error: operation not supported")
        return self.total - self.others - self.context - self.reserved, self.total


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", card.info)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: card.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: card.allocated)
    monkeypatch.setattr(
        torch.cuda, "get_per_process_memory_fraction", lambda _: card.fraction, raising=False
    )
    return card


def plan(margin: float = 2, **changes: object) -> Plan:
    return resolve(lite(target={"gpu": "h200", "margin_gib": margin}, **changes), lookup("h200"))


def needed(of: Plan) -> int:
    estimate = of.memory.training
    return estimate.reserved_bytes + int(of.spec.target.margin_gib * GIB)


def test_the_last_byte_decides_and_the_context_is_asked_for_once(card: Card) -> None:
    context = plan().memory.training.context_bytes
    for loaded in (0, context // 3, context):
        card.context = loaded
        card.total = needed(plan()) + context
        require_memory(plan(), CUDA)
        card.total -= 1
        with pytest.raises(DeviceError, match="GiB too little"):
            require_memory(plan(), CUDA)


def test_what_others_hold_is_not_free(card: Card) -> None:
    card.context = plan().memory.training.context_bytes
    card.others = card.total - card.context - needed(plan())
    require_memory(plan(), CUDA)
    card.others += 1
    with pytest.raises(DeviceError, match="Stop what else runs there"):
        require_memory(plan(), CUDA)


def test_what_this_process_cached_is_free_and_what_it_holds_is_not(card: Card) -> None:
    card.context = plan().memory.training.context_bytes
    card.reserved, card.allocated = 30 * GIB, 3 * GIB
    card.total = needed(plan()) + card.context + card.allocated
    require_memory(plan(), CUDA)
    card.allocated += 1
    with pytest.raises(DeviceError):
        require_memory(plan(), CUDA)


def test_the_smaller_of_free_memory_and_the_processs_fraction_counts(card: Card) -> None:
    exact = needed(plan())
    card.total = 4 * exact
    card.fraction = 0.25
    require_memory(plan(), CUDA)
    card.allocated = card.reserved = 1
    with pytest.raises(DeviceError):
        require_memory(plan(), CUDA)


def test_memory_that_cannot_be_read_is_refused_unless_told_otherwise(card: Card) -> None:
    card.readable = False
    with pytest.raises(DeviceError, match=r"cannot be read.*--unchecked-memory"):
        require_memory(plan(), CUDA)
    require_memory(plan(), CUDA, unchecked=True)


def test_the_flag_waives_nothing_where_memory_can_be_read(card: Card) -> None:
    card.total = GIB
    with pytest.raises(DeviceError, match="GiB too little"):
        require_memory(plan(), CUDA, unchecked=True)


def test_a_refusal_has_the_peak_and_changes_that_fit(card: Card) -> None:
    tight = plan(0, training__checkpoint_every=0, model__moe__backward="save", model__vocab=512)
    estimate = tight.memory.training
    card.context = estimate.context_bytes
    card.total = int(0.9 * estimate.total_bytes)
    with pytest.raises(DeviceError) as refused:
        require_memory(tight, CUDA)
    message = str(refused.value)
    assert f"At the peak ({estimate.peak}): saved by the layers" in message
    for field in ("training.micro_batch", "training.context", "model.moe.backward: recompute"):
        assert field in message
    period = int(message.split("training.checkpoint_every: ")[1].split(maxsplit=1)[0])
    fewer_layers = next(every for every in (2, 3, 4, 6, 12, 0) if every > period or not every)
    for every, fits in ((period, True), (fewer_layers, False)):
        other = plan(
            0,
            training__checkpoint_every=every,
            model__moe__backward="save",
            model__vocab=512,
        )
        if fits:
            require_memory(other, CUDA)
        else:
            with pytest.raises(DeviceError):
                require_memory(other, CUDA)


def test_a_processor_has_no_guard() -> None:
    assert allocator.segments(torch.device("cpu")) is None
    require_memory(plan(), torch.device("cpu"))


@pytest.mark.parametrize("name", ["", *allocator.SETTINGS])
def test_expandable_segments_are_chosen_unless_the_user_chose(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for each in allocator.SETTINGS:
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, "max_split_size_mb:64")
    allocator.use_expandable_segments()
    assert asked == ([] if name else ["expandable_segments:True"])


def test_an_allocator_in_use_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", asked.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    allocator.use_expandable_segments()
    assert asked == []


@pytest.mark.parametrize(
    ("kind", "ours", "unchecked", "said"),
    [
        ("expandable", True, False, ""),
        ("expandable", True, True, "--unchecked-memory: trains also where"),
        ("expandable", False, False, "memory is not checked: the estimate is of this project"),
        ("fixed", True, False, "does not use expandable segments"),
    ],
)
def test_what_the_guard_left_open_goes_into_the_record(
    kind: str, ours: bool, unchecked: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "segments", lambda _: kind)
    events = loop._memory_events(CUDA, ours=ours, unchecked=unchecked)
    assert len(events) == bool(said)
    assert said in "".join(events)
    assert loop._memory_events(torch.device("cpu"), ours=ours, unchecked=unchecked) == []
