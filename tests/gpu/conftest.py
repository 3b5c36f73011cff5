"""What the GPU tests share: the warnings that are not ours, and a card for several processes.

    python -m pytest -n 4 --dist loadgroup tests/gpu

Four processes share one card: each may hold a quarter of `SHARE`, and gives back what it cached
after every test. The tests that need much memory, and those that start processes of their own, are
each one group, so that only one process runs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

SHARE = 0.7
"""Part of the card's memory for the processes of a run; the rest is for their CUDA contexts and
for the processes that tests start."""

WARNINGS = (
    # PyTorch hides this one itself while it compiles, by a hook that the filter `error` forestalls
    r"ignore:The \.grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
    "ignore:Synchronization debug mode is a prototype feature:UserWarning",
    # the thread of the backward sets its context at its first product
    "ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning",
    # what the compiler says of its own work (TF32 products, online softmax)
    r"ignore::UserWarning:torch\._(dynamo|functorch|inductor)",
    # what PyTorch and Triton deprecate in their own code
    r"ignore::FutureWarning:torch\.",
    r"ignore::DeprecationWarning:triton\.",
)


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of pytest-xdist, which need not be installed."""
    config.addinivalue_line("markers", "xdist_group(name): tests that one process runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu"):
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def part_of_the_card() -> Iterator[None]:
    """Hold no more memory than this process's part, and none between tests."""
    import torch

    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        torch.cuda.set_per_process_memory_fraction(SHARE / processes)
    yield
    torch.cuda.empty_cache()
