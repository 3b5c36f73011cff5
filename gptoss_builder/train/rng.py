"""States of the random number generators, as tensors and plain numbers: nothing is pickled."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptoss_builder.errors import ArtifactError


def tensors(device: torch.device) -> dict[str, Tensor]:
    """States of torch's and numpy's generators, on the CPU, by name.

    The device's own generator is there if `device` is a GPU; states stay byte tensors on the
    CPU, which is where torch wants them back.
    """
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "numpy_keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": torch.tensor([position, has_gauss]),
        "numpy_gauss": torch.tensor([gauss], dtype=torch.float64),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def python_state() -> dict[str, Any]:
    """State of Python's `random`, as JSON values."""
    version, words, gauss = random.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def restore(state: dict[str, Tensor], python: dict[str, Any], device: torch.device) -> None:
    """Give every generator its state back.

    A GPU's state is missing in a checkpoint that a CPU wrote; the generator of the device then
    keeps the state that the run's seed gave it.

    Raises:
        ArtifactError: a state is missing or has the wrong shape.
    """
    try:
        torch.set_rng_state(state["torch"])
        position, has_gauss = state["numpy_position"].tolist()
        keys = state["numpy_keys"].numpy().astype(np.uint32)
        np.random.set_state(
            ("MT19937", keys, position, has_gauss, float(state["numpy_gauss"].item()))
        )
        random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
        if device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], device)
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ArtifactError(f"the checkpoint's random states are not usable: {error}") from error
