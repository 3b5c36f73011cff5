"""What every test shares: the gpu marker, memory poisoned with NaN."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


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
