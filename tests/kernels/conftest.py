"""The kernel runs under Triton's interpreter where there is no GPU, and on the GPU where there is.

The interpreter is right in fp32 and silently wrong in bf16, so bf16 of the kernel is tested in
tests/gpu alone.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
