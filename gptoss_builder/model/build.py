"""From a plan to a module on a device."""

from __future__ import annotations

import torch

from gptoss_builder.errors import DeviceError
from gptoss_builder.model.init import initialize
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.schema import Plan


def build(plan: Plan, *, device: torch.device | str | None = None) -> Transformer:
    """Construct and initialise the model of a plan, with fp32 parameters.

    Gradient checkpointing is the module's own, as the plan says; `training.compile` is the
    trainer's, which compiles the copy that it computes with.

    Args:
        plan: What `plan.resolve` returned.
        device: Where; by default the plan's device. `meta` takes no memory and leaves the
            values to a later `to_empty` and `initialize`.

    Raises:
        DeviceError: there is no such device, or it is not the one that the plan was made for.
    """
    try:
        place = torch.device(device if device is not None else plan.execution.device)
    except RuntimeError as error:
        raise DeviceError(f"{device} is not a device; name cpu, cuda, cuda:0 or meta") from error
    _require_device(plan, place)
    with torch.device("meta"):
        model = Transformer(plan)
    if place.type == "meta":
        return model
    model.to_empty(device=place)
    initialize(model, plan.spec)
    return model


def _require_device(plan: Plan, place: torch.device) -> None:
    if place.type == "meta":
        return
    wanted, arch = plan.execution.device, plan.target.arch
    if place.type != wanted:
        raise DeviceError(
            f"this plan is for {plan.target.name} ({arch}), not for {place.type}: resolve it "
            f"again with --target {'cpu' if place.type == 'cpu' else 'the card in use'}"
        )
    if place.type == "cpu":
        return
    if not torch.cuda.is_available():
        raise DeviceError(f"this plan is for {plan.target.name}, and no GPU is available here")
    major, minor = torch.cuda.get_device_capability(place)
    if f"sm{major}{minor}" != arch:
        raise DeviceError(
            f"this plan is for {arch} ({plan.target.name}), and the device is sm{major}{minor} "
            f"({torch.cuda.get_device_name(place)}): resolve it again for this card"
        )
