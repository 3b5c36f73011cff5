"""What gptoss-build prints of the plan that it wrote."""

from __future__ import annotations

from pathlib import Path

from gptoss_builder.plan.cost_table import PREDICTED_FROM
from gptoss_builder.plan.schema import MemoryEstimate, Plan

GIB = 2**30


def summary(plan: Plan) -> str:
    """The plan's main figures, a line each."""
    target, execution = plan.target, plan.execution
    lines = [
        f"{plan.spec.name} on {target.name} ({target.arch}), {execution.precision}",
        f"  parameters  {plan.parameters.total:,}, {plan.parameters.active:,} active",
        f"  experts     {execution.dispatch}: up {execution.up_products}, "
        f"down {execution.down_products}",
        f"  attention   window layers {execution.window_attention}, "
        f"full layers {execution.full_attention}",
    ]
    if plan.launch is not None:
        tile = plan.launch
        lines.append(
            f"  kernel      {tile.block_t}×{tile.block_k}×{tile.block_n}, {tile.num_warps} warps, "
            f"{tile.num_stages} stages ({tile.source}); {plan.kernel_build.replace('_', ' ')}"
        )
    for name, estimate in (
        ("training", plan.memory.training),
        ("inference", plan.memory.inference),
    ):
        if estimate is not None:
            lines.append(f"  {name:<10}  {_memory(estimate, plan)}")
    if plan.heuristic is not None:
        lines.append(f"  heuristic   {plan.heuristic.gib:.2f} GiB by theory.txt, for comparison")
    if plan.cost is not None:
        lines.append(
            f"  speed       {plan.cost.tokens_per_second:,.0f} tokens/s, "
            f"{plan.cost.gpu_hours:,.1f} GPU-hours in all, "
            f"predicted from {PREDICTED_FROM[plan.cost.source]}"
        )
    return "\n".join(lines)


def next_steps(plan: Plan, directory: Path) -> str:
    """What was written, what is missing to train it, and how to."""
    lines = [f"wrote {directory}"]
    data = plan.spec.data
    if data is not None:
        files = {"data.path": data.path, "data.tokenizer": data.tokenizer}
        missing = [
            f"{field} {name}"
            for field, name in files.items()
            if name != "bytes" and not Path(name).exists()
        ]
        if missing:
            lines.append(f"not here yet, so not judged: {', '.join(missing)}; see gptoss-prepare")
    if plan.spec.training is not None:
        lines.append(f"next: gptoss-train {directory}")
    return "\n".join(lines)


def _memory(estimate: MemoryEstimate, plan: Plan) -> str:
    text = f"{estimate.total_bytes / GIB:.2f} GiB, largest at: {estimate.peak}"
    if plan.target.memory_bytes:
        text += f" (card: {plan.target.memory_bytes / GIB:.2f} GiB)"
    return text
