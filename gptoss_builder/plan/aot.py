"""Compiling the W1/W3 kernel for a card that is not there: what to compile, and what came out.

This side imports neither torch nor triton. It starts `python -m gptoss_builder.kernels.compile`,
one child for each architecture because a compiler may take its process down, and keeps the
results in a cache of its own, so that asking again costs milliseconds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import pydantic

from gptoss_builder.errors import KernelError, MissingTritonError, install
from gptoss_builder.plan import compile_cache
from gptoss_builder.plan.compile_cache import Entry
from gptoss_builder.plan.launch import occupancy
from gptoss_builder.plan.schema import LaunchConfig, Plan
from gptoss_builder.spec.schema import Frozen, Precision
from gptoss_builder.targets import ARCHITECTURES, ArchName

CHILD_TIMEOUT = 600.0
"""Seconds after which a compile is given up."""
TENSOR_CORE_INSTRUCTIONS = ("HMMA", "HGMMA", "UTCHMMA", "OMMA")
"""Matrix instructions of sm80 to sm120 as the disassembler names them."""


class CompileRequest(Frozen):
    """One specialisation of the kernel."""

    arch: ArchName
    precision: Precision
    d_model: int
    d_ff: int
    experts: int
    launch: LaunchConfig
    kernel: Literal["up", "activation_backward", "shared_activation_backward"] = "up"
    """`up` is the W1/W3 kernel; the others are the backward of its activation, for rows with a
    weight and for the shared experts', which have none. To those only precision and `d_ff` matter:
    they have a launch of their own."""
    gather: bool = True
    """Rows are loaded through an index."""
    write_h: bool = True
    """Writes h."""
    write_gate_up: bool = False
    """Writes gate and up, for the backward."""

    def file_stem(self) -> str:
        """Name of this specialisation's files in a build directory."""
        if self.kernel != "up":
            return f"w1w3-{self.kernel}"
        outputs = [
            name
            for name, written in (("h", self.write_h), ("gate_up", self.write_gate_up))
            if written
        ]
        return f"w1w3-{'-'.join(outputs)}"


class CompileReport(Frozen):
    """What the compiler made of one request."""

    request: CompileRequest
    error: str = ""
    """The compiler's message when it failed; the rest is then 0."""
    num_warps: int = 0
    """Warps of a block."""
    registers: int = 0
    """Registers of a thread."""
    spill_bytes: int = 0
    """Bytes that a thread stores to local memory for want of registers."""
    shared_memory_bytes: int = 0
    """Shared memory of a block."""
    shared_memory_limit: int = 0
    """Largest that a block of this architecture can have."""
    occupancy: int = 0
    """Blocks on a multiprocessor at a time."""
    instructions: dict[str, int] = {}  # noqa: RUF012  # pydantic copies defaults
    """Count of the instructions that matter, in the machine code."""
    trap: bool = False
    """The compiler gave up inside and left a trap in place of the kernel."""
    cubin_sha256: str = ""
    """Hash of the machine code."""
    triton: str = ""
    """Version of Triton."""
    seconds: float = pydantic.Field(default=0.0, exclude=True)
    """Time that the compile took when it was made; a build, which has no times, leaves it out."""

    def problems(self) -> tuple[str, ...]:
        """Why this kernel must not be used: empty when nothing speaks against it."""
        if self.error:
            return (f"does not compile: {self.error}",)
        found = []
        if self.trap:
            found.append("compiles to a trap; use smaller blocks")
        if self.spill_bytes:
            found.append(f"spills {self.spill_bytes} bytes of registers; use smaller blocks")
        if self.shared_memory_bytes > self.shared_memory_limit:
            found.append(
                f"needs {self.shared_memory_bytes:,} bytes of shared memory where a block has "
                f"{self.shared_memory_limit:,}; use fewer stages or smaller blocks"
            )
        products = self.request.kernel == "up" and self.request.precision == "bf16"
        if products and not any(self.instructions.get(name) for name in TENSOR_CORE_INSTRUCTIONS):
            found.append("has no matrix instructions in bf16; use another target or fp32")
        return tuple(found)


class Compiled(NamedTuple):
    """A report and its machine code (empty when the compile failed)."""

    report: CompileReport
    cubin: bytes


def requests_of(plan: Plan) -> tuple[CompileRequest, ...]:
    """The specialisations that a run of `plan` launches; none unless it uses the kernel."""
    if plan.launch is None or plan.target.arch == "cpu":
        return ()
    moe = plan.spec.model.moe
    base = CompileRequest(
        arch=plan.target.arch,
        precision=plan.execution.precision,
        d_model=plan.spec.model.d_model,
        d_ff=moe.d_ff,
        experts=moe.experts,
        launch=plan.launch,
    )
    if plan.spec.training is None:
        return (base,)
    keeps = plan.execution.backward == "save"
    gate_up = base.model_copy(update={"write_h": keeps, "write_gate_up": True})
    activation = base.model_copy(update={"kernel": "activation_backward", "write_h": False})
    if not moe.shared_experts:
        return (base, gate_up, activation)
    width = moe.shared_experts * moe.d_ff
    shared = {"kernel": "shared_activation_backward", "d_ff": width, "experts": 1}
    return (base, gate_up, activation, activation.model_copy(update=shared))


def compile_report(
    requests: Iterable[CompileRequest], *, cache: Path | None = None
) -> list[CompileReport]:
    """Reports alone; see `compile_kernels`."""
    return [compiled.report for compiled in compile_kernels(requests, cache=cache)]


def compile_kernels(
    requests: Iterable[CompileRequest], *, cache: Path | None = None
) -> list[Compiled]:
    """Compile each request for its architecture; needs Triton, and no GPU.

    Args:
        requests: what to compile; equal requests are compiled once.
        cache: folder for the results, `$XDG_CACHE_HOME/gptoss-builder` by default. What is not
            whole there is made again, and nothing is kept where there is no such folder.

    Returns:
        One result a request, in order. A kernel that does not compile has its error inside.

    Raises:
        MissingTritonError: Triton is not installed.
        KernelError: a compiler process ended without a result.
    """
    wanted = list(requests)
    if not wanted:
        return []
    folder = cache if cache is not None else compile_cache.default_folder()
    version = _triton_version()
    keys = {request: _key(request, version) for request in wanted}
    entries = {request: compile_cache.read(folder, key) for request, key in keys.items()}
    by_arch: dict[ArchName, list[CompileRequest]] = {}
    for request in keys:
        if entries[request] is None:
            by_arch.setdefault(request.arch, []).append(request)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        groups = by_arch.values()
        for group, results in zip(groups, pool.map(_compile_one_architecture, groups), strict=True):
            for request, entry in zip(group, results, strict=True):
                entries[request] = entry
                if not entry.figures.get("error"):
                    compile_cache.write(folder, keys[request], entry)
    return [_with_report(request, made) for request in wanted if (made := entries[request])]


def _compile_one_architecture(requests: Sequence[CompileRequest]) -> list[Entry]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRITON_")
    }
    # paths in the debug information would make the machine code depend on the checkout
    environment["TRITON_DISABLE_LINE_INFO"] = "1"
    package = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (package, os.environ.get("PYTHONPATH")))
    )
    with tempfile.TemporaryDirectory() as scratch:
        environment["TRITON_CACHE_DIR"] = scratch
        try:
            child = subprocess.run(
                # -P: no module of the working directory takes the place of another
                [sys.executable, "-P", "-m", "gptoss_builder.kernels.compile", scratch],
                input=json.dumps([request.model_dump(mode="json") for request in requests]),
                capture_output=True,
                text=True,
                timeout=CHILD_TIMEOUT,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KernelError(
                f"the compiler for {requests[0].arch} did not end within {CHILD_TIMEOUT:.0f} s; "
                "use smaller blocks or fewer stages"
            ) from error
        except OSError as error:
            raise KernelError(
                f"the compiler for {requests[0].arch} did not start: {sys.executable}: "
                f"{error.strerror}"
            ) from error
        if child.returncode != 0:
            raise KernelError(
                f"the compiler for {requests[0].arch} ended with status {child.returncode}: "
                f"{child.stderr.strip()[-2000:]}; set another `kernel:` or "
                "model.moe.dispatch: stacked"
            )
        results = []
        for index, figures in enumerate(json.loads(child.stdout.splitlines()[-1])):
            cubin = Path(scratch, f"{index}.cubin")
            code = cubin.read_bytes() if cubin.exists() else b""
            results.append(Entry(figures, code))
        return results


def _with_report(request: CompileRequest, entry: Entry) -> Compiled:
    """Add what follows from the figures and from the tables as they are now."""
    report = CompileReport.model_validate({"request": request, **entry.figures})
    if report.error or request.arch == "cpu":
        return Compiled(report, entry.cubin)
    blocks = occupancy(
        request.arch,
        num_warps=report.num_warps,
        registers=report.registers,
        shared_memory=report.shared_memory_bytes,
    )
    derived = {
        "shared_memory_limit": ARCHITECTURES[request.arch].shared_memory_per_block,
        "occupancy": blocks,
        "cubin_sha256": hashlib.sha256(entry.cubin).hexdigest(),
    }
    return Compiled(report.model_copy(update=derived), entry.cubin)


def _triton_version() -> str:
    for package, name in _NEEDED.items():
        found = importlib.util.find_spec(package)
        # a folder of that name in the working directory is found too, but has no origin
        if found is None or found.origin is None:
            raise MissingTritonError(f"compiling the kernel needs {name}; {install('train')}")
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        # nightly builds of PyTorch bring it under another name
        names = importlib.metadata.packages_distributions().get("triton", [])
        return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(names))


_NEEDED = {
    "triton": "Triton, which is not installed here and is for Linux only",
    "torch": "PyTorch, which is not installed here",
}


def _key(request: CompileRequest, version: str) -> str:
    kernels = Path(__file__).parent.parent / "kernels"
    sources = b"".join((kernels / name).read_bytes() for name in ("w1w3_triton.py", "compile.py"))
    text = f"{version}\n{request.model_dump_json(exclude={'launch': {'source', 'evidence'}})}\n"
    return hashlib.sha256(text.encode() + sources).hexdigest()
