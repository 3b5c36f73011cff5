from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Problem, SpecRule
from gptoss_builder.spec.schema import Spec

REQUIRED = 1.8
"""Smallest reduction of the cache, and the share of layers from which it is asked."""


@partial(
    SpecRule,
    code="AT007",
    title="the window layers shrink the key-value cache by at least 1.8 times",
    why="Window layers keep a ring of window entries, full layers the whole inference context. "
    "Where layers / full layers promises a reduction of 1.8 or more, a window that is wide "
    "beside the context takes the promise back.",
    bad="model: {layers: 4, attention: {pattern: [window, full], window: 1024}}\n"
    "inference: {context: 4096}",
    good="model: {layers: 4, attention: {pattern: [window, full], window: 128}}\n"
    "inference: {context: 4096}",
    reads=(
        "model.layers",
        "model.attention.pattern",
        "model.attention.window",
        "inference.context",
    ),
)
def rule(spec: Spec) -> Iterator[Problem]:
    window, inference = spec.model.attention.window, spec.inference
    layers = spec.model.layers
    full_layers = spec.layer_kinds().count("full")
    if inference is None or window is None or full_layers * REQUIRED > layers:
        return
    context = inference.context
    entries = full_layers * context + (layers - full_layers) * min(window, context)
    reduction = layers * context / entries
    if reduction < REQUIRED:
        widest = (int(layers * context / REQUIRED) - full_layers * context) // (
            layers - full_layers
        )
        yield Problem(
            "model.attention.window",
            f"the cache at a context of {context} is {reduction:.2f} times smaller than without "
            f"windows; at least {REQUIRED} is required",
            f"set window to at most {widest}, or raise inference.context"
            if widest >= 1
            else "raise inference.context",
        )
