"""What every test shares: the gpu marker, Triton's interpreter, memory poisoned with NaN.

Where there is no GPU the kernel runs under Triton's interpreter. It is right in fp32 and silently
wrong in bf16, so bf16 of the kernel is tested in tests/gpu alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


# before anything imports triton, which reads it then
if not _has_gpu():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a CUDA GPU")
        for item in marked:
            item.add_marker(skip)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fill every `torch.empty` with NaN, so that reading unwritten memory shows."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Draw the same numbers every time, where a test does not bring a generator of its own."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
