"""The device in use against the plan: architecture, precision and free memory, or no run."""

from __future__ import annotations

import torch

from gptoss_builder.errors import DeviceError
from gptoss_builder.plan.advice import breakdown, what_trains
from gptoss_builder.plan.schema import Plan

GIB = 2**30


def training_device(plan: Plan, requested: torch.device | str | None = None) -> torch.device:
    """The device that the plan was made for, checked to be that.

    Args:
        plan: what to train.
        requested: a device to use in place of the plan's current one, such as `cuda:1`.

    Raises:
        DeviceError: it is of another kind or architecture, or cannot do the plan's precision.
            Nothing is swapped for something that would work.
    """
    try:
        device = torch.device(requested if requested is not None else plan.execution.device)
    except RuntimeError as error:
        raise DeviceError(f"{requested} is not a device; name cpu, cuda or cuda:0") from error
    want = plan.target.arch
    if device.type != plan.execution.device:
        raise DeviceError(
            f"this build is for {plan.target.name} ({want}), not for {device.type}; build again "
            "with --target for the device in use"
        )
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise DeviceError(
            f"this build is for {plan.target.name} ({want}), but torch sees no GPU here; run it "
            "on that card, or build with --target cpu"
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise DeviceError(f"there is no cuda:{index} here; {torch.cuda.device_count()} GPUs are")
    have = "sm{}{}".format(*torch.cuda.get_device_capability(index))
    if have != want:
        raise DeviceError(
            f"this build is for {want} ({plan.target.name}), but cuda:{index} is a "
            f"{torch.cuda.get_device_name(index)} ({have}); build again with --target {have}"
        )
    if plan.execution.precision == "bf16" and not torch.cuda.is_bf16_supported(
        including_emulation=False
    ):
        raise DeviceError(f"{have} has no bf16; set training.precision to fp32 and build again")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def require_memory(plan: Plan, device: torch.device, *, unchecked: bool = False) -> None:
    """Refuse unless the plan's estimate and margin fit in the memory that is free now.

    Nothing is known about the limit of a CPU.

    Args:
        plan: what is to be trained; its estimate is of this project's model.
        device: where.
        unchecked: go on where the free memory cannot be read. It waives nothing else.

    Raises:
        DeviceError: it does not fit, or the free memory cannot be read; says what can be done.
    """
    estimate = plan.memory.training
    if device.type != "cuda" or estimate is None:
        return
    room = _room(device, estimate.context_bytes)
    if room is None:
        if unchecked:
            return
        raise DeviceError(
            f"the free memory of {torch.cuda.get_device_name(device)} cannot be read, so nothing "
            f"says whether the {estimate.reserved_bytes / GIB:.2f} GiB that training needs fit; "
            "pass --unchecked-memory (unchecked_memory=True) to train all the same"
        )
    margin = int(plan.spec.target.margin_gib * GIB)
    missing = estimate.reserved_bytes + margin - room
    if missing > 0:
        # the changes are judged with their context, which the room is without
        changes = what_trains(plan, room - margin + estimate.context_bytes)
        raise DeviceError(
            f"training needs {estimate.reserved_bytes / GIB:.2f} GiB and a margin of "
            f"{margin / GIB:.2f} GiB, but has {max(room, 0) / GIB:.2f} GiB on "
            f"{torch.cuda.get_device_name(device)}: {missing / GIB:.2f} GiB too little. At the "
            f"peak ({estimate.peak}): {breakdown(estimate)}. Stop what else runs there, or "
            + (f"set {changes}" if changes else "narrow the model; no other change is enough")
        )


def _room(device: torch.device, context_bytes: int) -> int | None:
    """Bytes that the allocator can still come to hold; None if the device does not say.

    The smaller of what is free there, less the part of the CUDA context that is not loaded yet,
    and of what `torch.cuda.set_per_process_memory_fraction` allows.
    """
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return None
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    # others' memory counts as context here: then all of ours is taken to be loaded
    loaded = total - free - reserved
    unloaded = max(context_bytes - loaded, 0)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free + reserved - unloaded, allowed) - allocated


def synchronize(device: torch.device) -> None:
    """Wait for everything that was launched; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """What the run record calls the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
