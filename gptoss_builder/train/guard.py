"""The NaN guard: a step whose loss or gradient norm is not finite changes nothing.

A finite loss is no proof: one NaN in one gradient is enough to turn every weight into NaN, as
clipping spreads it. Whether to skip is decided on the device, in the same step; counting
happens on the host, when the step's numbers have arrived there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gptoss_builder.errors import DivergedError
from gptoss_builder.spec.schema import NanGuardSpec


class NanGuard:
    """Skips steps that are not finite, and stops a run that has too many in a row."""

    def __init__(self, spec: NanGuardSpec, *, consecutive: int = 0) -> None:
        """Start with `consecutive` skipped steps behind it: 0, or what a checkpoint says."""
        self.enabled = spec.enabled
        self.limit = spec.max_consecutive
        self.consecutive = consecutive

    def skip(self, loss: Tensor, norm: Tensor) -> Tensor | None:
        """What `optim.step` takes as `skip`: an fp32 scalar on the device, None if off.

        Args:
            loss: mean cross-entropy of the step.
            norm: global gradient norm.
        """
        if not self.enabled:
            return None
        return (~(torch.isfinite(loss) & torch.isfinite(norm))).float()

    def observe(self, step: int, loss: float, norm: float, *, finite: bool) -> None:
        """Count what step `step` was.

        Raises:
            DivergedError: `max_consecutive` steps in a row were not finite.
        """
        self.consecutive = 0 if finite else self.consecutive + 1
        if self.enabled and self.consecutive >= self.limit:
            raise DivergedError(
                f"{self.consecutive} steps in a row up to step {step} had a loss or a gradient "
                f"norm that is not finite (last loss {loss}, norm {norm}); none of them was "
                "applied. Resume from the last checkpoint with a lower training.optimizer.lr, "
                "a longer warmup_steps or a tighter grad_clip"
            )
