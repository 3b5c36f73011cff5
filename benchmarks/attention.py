"""Attention kernels on the GPU at hand: checked against fp64, then timed.

    python -m benchmarks.attention --batch 8 --context 4096 --heads 8 --kv-heads 4 --head-dim 96

The check is on one sequence of 1,024 tokens; the times are medians at the size asked for.
FLOPs are those of the visible pairs: 4·d forward and 10·d backward for each pair and head.
"""

# T tokens, H query heads, K key/value heads, d head width

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.arguments import positive
from gptoss_builder.model.attention_fused import attend_cudnn, attend_flash
from gptoss_builder.model.attention_math import attend_math

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
LIMIT = 6e-3
CHECK_TOKENS = 1024


def main() -> None:
    """Read the sizes, then check, time and print each kernel."""
    parser = argparse.ArgumentParser(description="Time attention kernels.")
    for name, value in (
        ("batch", 8),
        ("context", 4096),
        ("heads", 8),
        ("kv-heads", 4),
        ("head-dim", 96),
        ("window", 128),
        ("repeat", 30),
    ):
        parser.add_argument(f"--{name}", type=positive, default=value)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU here: nothing to time")
    window = options.window
    rows: list[tuple[str, Attend, int | None]] = [
        ("flash, window", partial(flash, window), window),
        ("flash, full", partial(flash, None), None),
        ("cudnn, full", attend_cudnn, None),
    ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {vars(options)}")
    print(f"{'kernel':<16}{'error':>10}{'fwd ms':>10}{'bwd ms':>10}{'fwd TFLOP/s':>13}{'bwd':>8}")
    for name, attend, size in rows:
        error = check(attend, size, options)
        forward, backward = time(attend, options)
        flops = 4.0 * options.batch * options.heads * options.head_dim
        flops *= visible_pairs(options.context, size)
        print(
            f"{name:<16}{error:>10.1e}{forward * 1e3:>10.3f}{backward * 1e3:>10.3f}"
            f"{flops / forward / 1e12:>13.0f}{2.5 * flops / backward / 1e12:>8.0f}"
        )


def flash(window: int | None, q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """`attend_flash` with the window first, to be bound."""
    return attend_flash(q, k, v, sink, window)


def visible_pairs(tokens: int, window: int | None) -> float:
    """Query-key pairs of one head and sequence."""
    seen = min(window or tokens, tokens)
    return seen * (seen + 1) / 2 + (tokens - seen) * seen


def inputs(batch: int, tokens: int, options: argparse.Namespace) -> list[Tensor]:
    """Random bf16 queries, keys and values, fp32 sinks, all with gradients."""
    shapes = [
        (batch, tokens, options.heads, options.head_dim),
        (batch, tokens, options.kv_heads, options.head_dim),
        (batch, tokens, options.kv_heads, options.head_dim),
    ]
    leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    return [leaf.requires_grad_() for leaf in (*leaves, torch.randn(options.heads, device="cuda"))]


def check(attend: Attend, window: int | None, options: argparse.Namespace) -> float:
    """Largest relative error of the output and the four gradients against fp64.

    Raises:
        SystemExit: a result that is wrong, so that nothing wrong is timed.
    """
    leaves = inputs(1, CHECK_TOKENS, options)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    q, k, v, sink = wide
    out, exact = attend(*leaves), attend_math(q, k, v, sink, window)
    grad = torch.randn_like(out)
    ours = (out, *torch.autograd.grad(out, leaves, grad))
    right = (exact, *torch.autograd.grad(exact, wide, grad.double()))
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, right, strict=True)]
    if not max(errors) <= LIMIT:
        raise SystemExit(f"wrong result, not timed: relative errors {errors} (out, q, k, v, sink)")
    return max(errors)


def time(attend: Attend, options: argparse.Namespace) -> tuple[float, float]:
    """Median seconds of forward and of backward."""
    leaves = inputs(options.batch, options.context, options)
    out = attend(*leaves)
    grad = torch.randn_like(out)
    forward = median(lambda: attend(*leaves), options.repeat)
    backward = median(
        lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True), options.repeat
    )
    return forward, backward


def median(work: Callable[[], object], repeat: int) -> float:
    """Median seconds of one call, by CUDA events."""
    for _ in range(3):
        work()
    seconds: list[float] = []
    for _ in range(repeat):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch
        stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch
        start.record()
        work()
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
