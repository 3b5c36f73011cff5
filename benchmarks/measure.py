"""What the benchmarks share: timing, the table, the JSON file, the facts of the machine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from gptoss_builder.files import write_text


def require_gpu() -> None:
    """Leave with a message and exit code 2 where there is nothing to time."""
    if not torch.cuda.is_available():
        print("this times kernels on a GPU, and no CUDA GPU is available here", file=sys.stderr)
        raise SystemExit(2)


def milliseconds(run: Callable[[], Any], *, repeat: int = 200) -> float:
    """Median time of `run` on the GPU, with a cold L2, over `repeat` milliseconds of calls."""
    warmup = max(repeat // 4, 1)
    return float(triton.testing.do_bench(run, warmup=warmup, rep=repeat, return_mode="median"))


def graph_milliseconds(run: Callable[[], Any], *, repeat: int = 200) -> float:
    """As `milliseconds`, of a CUDA graph of `run`: without the host's time to launch kernels.

    `run` must not wait for the device.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is set up at a first call must not be in the graph
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = milliseconds(graph.replay, repeat=repeat)
    del graph
    torch.cuda.synchronize()
    return found


class Dense:
    """Rate of one dense cuBLAS product in bf16, `[rows, d_in] @ [d_in, d_out]`, random data.

    Measured before and after what is compared with it: a card's clock moves.
    """

    def __init__(self, rows: int, d_in: int, d_out: int, *, repeat: int = 200) -> None:
        self.sizes, self.repeat = (rows, d_in, d_out), repeat
        self.rates = [self._measure()]

    def again(self) -> float:
        """Measure once more; returns the mean, TFLOP/s."""
        self.rates.append(self._measure())
        return statistics.mean(self.rates)

    def _measure(self) -> float:
        rows, d_in, d_out = self.sizes
        x = torch.randn(rows, d_in, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(d_out, d_in, device="cuda", dtype=torch.bfloat16)
        taken = graph_milliseconds(lambda: x @ w.T, repeat=self.repeat)
        return 2 * rows * d_in * d_out / taken / 1e9

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.4g}" for rate in self.rates)
        return f"One dense cuBLAS product of the same FLOPs, before and after: {rates} TFLOP/s"


def peak_bytes(run: Callable[[], Any]) -> int:
    """Most memory that `run` holds beyond what was held before, in a second call."""
    run()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of `exact`, in fp64."""
    exact64 = exact.detach().double()
    return float((actual.detach().double() - exact64).norm() / exact64.norm())


def machine() -> dict[str, str]:
    """The card, its driver and the versions that the figures belong to."""
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": driver(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def driver() -> str:
    """Version of NVIDIA's driver, which torch does not know: nvidia-smi's word, or `unknown`."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.splitlines()[0].strip() if found.stdout.strip() else "unknown"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a Markdown table; a cell of None stays empty."""
    lines = [f"\n{title}\n", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for row in rows:
        cells = [
            f"{cell:.4g}" if isinstance(cell, float) else "" if cell is None else str(cell)
            for cell in row
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file through a temporary name."""
    write_text(path, json.dumps(content, indent=1) + "\n")
