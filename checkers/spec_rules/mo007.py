from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.facts import precision
from checkers.rule import Problem, TargetRule
from checkers.wording import either
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target


@partial(
    TargetRule,
    code="MO007",
    title="grouped_mm runs where it is native: in bf16 on sm90 and sm100",
    why="Elsewhere PyTorch's grouped_mm loops over the experts and waits for the device at "
    "every call, without a word: a silent fallback.",
    bad="model: {moe: {dispatch: grouped_mm}}\ntarget: {gpu: a100-80gb}",
    good="model: {moe: {dispatch: grouped_mm}}\ntarget: {gpu: h200}",
    reads=("model.moe.dispatch", "training.precision"),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.model.moe.dispatch != "grouped_mm" or target.arch == "cpu":
        return
    dtype = precision(spec, target)
    if ARCHITECTURES[target.arch].grouped_mm != "native" or dtype != "bf16":
        native = either(a.name for a in ARCHITECTURES.values() if a.grouped_mm == "native")
        yield Problem(
            "model.moe.dispatch",
            f"dispatch is grouped_mm, which is native in bf16 on {native} only, and this is "
            f"{dtype} on {target.name} ({target.arch})",
            "set dispatch: stacked or triton_grouped",
        )
