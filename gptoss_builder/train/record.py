"""The run record: what really ran, compared with the plan at the end.

Kernels count their own launches (`gptoss_builder.kernels.launches`), so the record does not
repeat what was asked for: something that ran in its place would show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gptoss_builder import __version__
from gptoss_builder.errors import RunError
from gptoss_builder.kernels.launches import launches
from gptoss_builder.model.attention import Attention
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train.allocator import segments
from gptoss_builder.train.device import device_name

FILE = "run.jsonl"


class RunRecord:
    """Collects one run; `finish` writes it to the run directory and compares."""

    def __init__(
        self,
        plan: Plan,
        compute: nn.Module,
        device: torch.device,
        events: Sequence[str],
        *,
        ours: bool,
    ) -> None:
        """Start counting.

        Args:
            plan: what should run.
            compute: the module that computes, read for its attention kernels and types.
            device: where.
            events: what a reader should know: a resume, changed values, a guard that is off.
            ours: the module is this project's; of a user's own only types are compared.
        """
        self._plan, self._compute, self._device, self._ours = plan, compute, device, ours
        self._events = tuple(events)
        self._before = Counter(launches)

    def write(self, directory: Path, *, steps: tuple[int, int], computed: bool) -> None:
        """Append this part of the run to `run.jsonl`, as one line.

        Args:
            directory: the run directory.
            steps: optimizer steps done before and after this part.
            computed: whether one of them had a label, so that something ran.
        """
        ran = self._ran()
        entry = {
            "version": __version__,
            "torch": torch.__version__,
            "steps": list(steps),
            "planned": self._plan.execution.model_dump(mode="json"),
            "ran": ran,
            "differences": self._differences(ran) if computed else [],
            "events": self._events,
        }
        with (directory / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def require_as_planned(self) -> None:
        """Compare what ran with the plan.

        Raises:
            RunError: something other than the plan's ran.
        """
        differences = self._differences(self._ran())
        if differences:
            raise RunError(
                f"what ran is not what the plan says: {'; '.join(differences)}; {FILE} in the "
                "run directory has the whole record"
            )

    def _ran(self) -> dict[str, Any]:
        kernels = [
            {"layer": layer, "sees": module.kind, "kernel": module.kernel}
            for layer, module in enumerate(
                module for module in self._compute.modules() if isinstance(module, Attention)
            )
        ]
        types = Counter(str(p.dtype).removeprefix("torch.") for p in self._compute.parameters())
        return {
            "device": device_name(self._device),
            "segments": segments(self._device),
            "launches": dict(sorted((Counter(launches) - self._before).items())),
            "attention": kernels,
            "parameter_types": dict(sorted(types.items())),
        }

    def _differences(self, ran: dict[str, Any]) -> list[str]:
        run = self._plan.execution
        found = []
        if ("bfloat16" in ran["parameter_types"]) != (run.precision == "bf16"):
            found.append(f"precision {run.precision}, but matrices are {ran['parameter_types']}")
        if not self._ours:
            return found
        planned = {f"up:{run.up_products}"} | {
            f"products:{how}" for how in (run.down_products, run.backward_products)
        }
        counted = {name for name in ran["launches"] if not name.endswith(":dense")}
        found += [f"{name} did not run" for name in sorted(planned - counted)]
        found += [f"{name} ran unplanned" for name in sorted(counted - planned)]
        for layer in ran["attention"]:
            want = run.window_attention if layer["sees"] == "window" else run.full_attention
            if layer["kernel"] != want:
                found.append(f"attention of layer {layer['layer']}: {layer['kernel']}, not {want}")
        return found
