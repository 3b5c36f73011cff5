from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, TargetRule
from gptoss_builder.findings import Severity
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target


@partial(
    TargetRule,
    code="MO008",
    title="the kernel's products reach tensor cores",
    why="Since Triton 3.3 a dot on sm75 compiles to plain multiply-adds: the kernel is right "
    "there, but has none of the speed that it is chosen for.",
    bad="model: {moe: {dispatch: triton_grouped}}\ntraining: {precision: fp32}\ntarget: {gpu: t4}",
    good="model: {moe: {dispatch: stacked}}\ntraining: {precision: fp32}\ntarget: {gpu: t4}",
    severity=Severity.ADVICE,
    reads=("model.moe.dispatch",),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if target.arch == "cpu" or spec.model.moe.dispatch != "triton_grouped":
        return
    if ARCHITECTURES[target.arch].dot == "fma":
        yield Problem(
            "model.moe.dispatch",
            f"on {target.name} ({target.arch}) Triton's products use no tensor cores",
            "set dispatch: stacked, whose products are the vendor library's",
        )
