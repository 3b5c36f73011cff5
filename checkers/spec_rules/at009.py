from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec


@partial(
    SpecRule,
    code="AT009",
    title="YaRN's beta_fast is above its beta_slow",
    why="They bound the ramp between dimensions left alone and dimensions interpolated; the "
    "other way round the ramp is empty or inverted.",
    bad="model: {attention: {rope: {yarn: {factor: 32, original_context: 4096, "
    "beta_fast: 1, beta_slow: 32}}}}",
    good="model: {attention: {rope: {yarn: {factor: 32, original_context: 4096, "
    "beta_fast: 32, beta_slow: 1}}}}",
    reads=("model.attention.rope.yarn.beta_fast", "model.attention.rope.yarn.beta_slow"),
)
def rule(spec: Spec) -> Iterator[Problem]:
    yarn = spec.model.attention.rope.yarn
    if yarn is not None and yarn.beta_fast <= yarn.beta_slow:
        yield Problem(
            "model.attention.rope.yarn.beta_fast",
            f"beta_fast is {yarn.beta_fast:g}, not above beta_slow {yarn.beta_slow:g}",
            "swap the two" if yarn.beta_fast < yarn.beta_slow else "set beta_fast above beta_slow",
        )
