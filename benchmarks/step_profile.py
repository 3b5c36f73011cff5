"""Where the time of a training step goes, by component.

Every kernel of torch.profiler's trace is given to one component, by the operators that launched
it (the whole chain, outermost first), their input shapes and the plan's sizes. The names are
those of the plan's cost (`gptoss_builder.plan.cost`), so that each can be held to its prediction.
What fits nowhere is `rest`, with its largest names.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.step_components import REST, Launch, Shapes, component
from gptoss_builder.plan.schema import Plan

STEPS = 3
DEVICE_EVENTS = ("kernel", "gpu_memset", "gpu_memcpy")


def profile_step(step: Callable[[], object], plan: Plan, seconds: float) -> dict[str, Any]:
    """Profile a few calls of `step`, which takes `seconds` when nobody looks.

    Returns:
        See `summary`.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = read_trace(path)
    return summary(launches(trace, STEPS), plan, busy_ms(trace) / STEPS, seconds * 1e3)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, gzipped or not."""
    data = path.read_bytes()
    content = gzip.decompress(data) if path.suffix == ".gz" else data
    events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    return events


def launches(trace: Iterable[dict[str, Any]], steps: int) -> list[Launch]:
    """Device events of a trace of `steps` steps, summed over those that were launched alike."""
    events = list(trace)
    chains = {event["args"]["External id"]: chain for event, chain in _operators(events)}
    sums: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        if event.get("cat") not in DEVICE_EVENTS:
            continue
        chain, shapes, values = chains.get(event["args"].get("External id"), (("",), (), ()))
        total = sums[chain, shapes, values, event["name"]]
        total[0] += event["dur"] / 1e3 / steps
        total[1] += 1 / steps
    return [Launch(*key, *total) for key, total in sums.items()]


def _operators(
    events: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], tuple[tuple[str, ...], Shapes, tuple[str, ...]]]]:
    """Each operator with its chain of callers, found by the nesting of times on a thread."""
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    operators.sort(key=lambda event: (event["tid"], event["ts"], -event["dur"]))
    callers: list[dict[str, Any]] = []
    for event in operators:
        while callers and (
            callers[-1]["tid"] != event["tid"]
            or callers[-1]["ts"] + callers[-1]["dur"] <= event["ts"]
        ):
            callers.pop()
        callers.append(event)
        args = event["args"]
        shapes = tuple(map(_shape, args.get("Input Dims", ())))
        yield (
            event,
            (
                tuple(caller["name"] for caller in callers),
                shapes,
                tuple(map(str, args.get("Concrete Inputs", ()))),
            ),
        )


def _shape(dims: list[Any]) -> tuple[int, ...]:
    # a list of tensors has a list of lists
    return tuple(dims) if all(isinstance(size, int) for size in dims) else ()


def busy_ms(trace: Iterable[dict[str, Any]]) -> float:
    """Time in which at least one device event runs."""
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in trace
        if event.get("cat") in DEVICE_EVENTS
    )
    busy, end = 0.0, float("-inf")
    for start, stop in spans:
        busy += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return busy / 1e3


def summary(rows: list[Launch], plan: Plan, busy: float, ms: float) -> dict[str, Any]:
    """Milliseconds by component, largest first.

    Returns:
        `components` (name, ms, launches, and `predicted_ms` where the plan's cost has it),
        `busy_ms`, `idle` (share of a step in which nothing runs), `rest` (its largest kernels).
    """
    predicted = {item.name: item.seconds * 1e3 for item in plan.cost.items} if plan.cost else {}
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    rest = []
    for row in rows:
        name = component(row, plan)
        sums[name][0] += row.ms
        sums[name][1] += row.count
        if name == REST:
            rest.append(row)
    rest.sort(key=lambda row: -row.ms)
    return {
        "busy_ms": busy,
        "idle": 1 - busy / ms,
        "components": [
            {"name": name, "ms": total, "launches": count, "predicted_ms": predicted.get(name)}
            for name, (total, count) in sorted(sums.items(), key=lambda item: -item[1][0])
        ],
        "rest": [{"op": row.op, "kernel": row.kernel[:80], "ms": row.ms} for row in rest[:5]],
    }


def text(found: dict[str, Any]) -> str:
    """The table of a `summary`; its sum is the busy time unless kernels ran side by side."""
    parts = found["components"]
    lines = [f"    {'component':<36}{'ms':>8}{'predicted':>11}{'launches':>10}"]
    for part in parts:
        predicted = part["predicted_ms"]
        expected = "" if predicted is None else f"{predicted:.2f}"
        lines.append(
            f"    {part['name']:<36}{part['ms']:>8.2f}{expected:>11}{part['launches']:>10.0f}"
        )
    lines.append(
        f"    {'sum':<36}{sum(part['ms'] for part in parts):>8.2f}; busy "
        f"{found['busy_ms']:.2f} ms a step, idle {found['idle']:.1%}"
    )
    lines += [f"    rest: {row['ms']:.3f} ms {row['op']} {row['kernel']}" for row in found["rest"]]
    return "\n".join(lines)
