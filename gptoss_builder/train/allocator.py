"""PyTorch's caching allocator: expandable segments, for which reserved memory is estimated."""

from __future__ import annotations

import os
from typing import Literal

import torch

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables by which a user chooses: the name of now, and the older one."""


def use_expandable_segments() -> None:
    """Choose them, unless CUDA is in use already or the environment has settings of its own.

    What is in force in the end, `segments` says.
    """
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has it untyped
    if used or any(os.environ.get(name) for name in SETTINGS):
        return
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def segments(device: torch.device) -> Literal["expandable", "fixed"] | None:
    """What the allocator reserves memory in; None on a CPU, which has no such allocator."""
    if device.type != "cuda":
        return None
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return "expandable" if settings["expandable_segments"] else "fixed"
