"""The memory that a process has used at most."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Resident bytes of this process at most, since it began to run its program.

    `ru_maxrss` alone counts what the parent had when it started this process, and a test's
    parent has imported torch.
    """
    if STATUS.exists():
        line = next(one for one in STATUS.read_text().splitlines() if one.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
