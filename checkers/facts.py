"""What several rules ask of a spec on a card."""

from __future__ import annotations

from gptoss_builder.spec.schema import Precision, Spec
from gptoss_builder.targets import Target


def precision(spec: Spec, target: Target) -> Precision:
    """The training's precision; a spec for serving takes the card's best, as resolve does."""
    if spec.training is not None:
        return spec.training.precision
    return "bf16" if target.bf16_rate else "fp32"
