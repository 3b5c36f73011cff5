"""The public functions: what the commands do, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from gptoss_builder.pipeline import check, make_plan
from gptoss_builder.spec.load import load_spec
from gptoss_builder.spec.schema import Spec

if TYPE_CHECKING:
    import torch

    from gptoss_builder.model.transformer import Transformer
    from gptoss_builder.plan.schema import Plan

__all__ = ["build_model", "check", "load_spec", "make_plan", "train"]

Source = str | PathLike[str] | Mapping[str, Any] | Spec


def build_model(
    spec: Source,
    *,
    target: str | None = None,
    device: str | torch.device | None = None,
) -> Transformer:
    """Check a spec and build its model.

    Args:
        spec: path of a spec, a mapping, or a `Spec`.
        target: card or architecture that wins over the spec's own.
        device: where the parameters are made; torch's default device if None, and `meta`
            makes the module without memory.

    Returns:
        The module, with fp32 parameters initialised from `spec.seed`. Its `plan` carries
        every decision.

    Raises:
        SpecError: the spec breaks a rule; all findings are in `error.findings`.
        TargetError: the target is not in the table.
    """
    from gptoss_builder.model.build import build

    return build(make_plan(spec, target=target), device=device)
