"""Every error that this project raises on purpose.

Two branches, because the command line treats them differently: an `InputError` is
something that the user gave and can correct (exit code 2), a `RunError` is a run that
started and failed (exit code 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptoss_builder.findings import Finding


def install(extra: str) -> str:
    """How to install an extra, for messages: the project is on no package index."""
    return f"pip install '.[{extra}]' in a checkout of gptoss-builder"


class GptossError(Exception):
    """Base of all errors of this project; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(GptossError):
    """What the user gave cannot be used: a file, an argument, a value."""

    exit_code = 2


class SpecError(InputError):
    """A spec is not legal. `findings` holds every fault found, in the order of the file."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


class TargetError(InputError):
    """A target that the table does not know, or a build used on another architecture."""


class LaunchError(InputError):
    """A kernel launch configuration that the target cannot run."""


class CapError(InputError, ValueError):
    """A dimension above the hard cap (`gptoss_builder.spec.schema.HARD_CAP`)."""


class MissingTritonError(InputError, ImportError):
    """Triton is asked for and is not installed."""


class DataError(InputError):
    """Training data that cannot be used with this spec."""


class ArtifactError(InputError):
    """A file that an earlier command wrote (plan, checkpoint, manifest) is not valid."""


class DeviceError(InputError):
    """The device in use cannot do what the plan says."""


class RunError(GptossError):
    """A run that started and failed."""


class KernelError(RunError):
    """The configured kernel failed to compile or to launch. There is no fallback."""


class DivergedError(RunError):
    """Too many consecutive steps without a finite loss and gradient."""
