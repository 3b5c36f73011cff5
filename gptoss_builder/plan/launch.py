"""Launch configurations of the W1/W3 kernel, and what can be said of one without a GPU.

A row of the table is the best known configuration of one architecture and precision, with
its evidence. A spec's own `kernel:` block is judged by the same functions.
"""

from __future__ import annotations

from typing import NamedTuple

from gptoss_builder.errors import LaunchError
from gptoss_builder.plan.schema import LaunchConfig
from gptoss_builder.spec.schema import Kernel, KernelSpec, Precision
from gptoss_builder.targets import ARCHITECTURES, ArchName

ELEMENT_BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4}
REGISTER_UNIT = 256
"""Registers are allocated to a warp in this unit (CUDA occupancy calculator)."""
SHARED_MEMORY_UNIT = 128
"""Shared memory is allocated to a block in this unit (CUDA occupancy calculator)."""

WARP_GROUP, WGMMA_ROWS = 4, 64
"""Warps that issue an asynchronous product together, and the fewest rows of one (PTX ISA)."""

SEED = LaunchConfig(
    block_t=16,
    block_k=32,
    block_n=32,
    num_warps=4,
    num_stages=1,
    source="measured",
    evidence="59.9 TFLOP/s on an H200 (bf16, 65,536 rows, 768 to 1,536) as first published",
)
"""The configuration that the kernel was first published with; small enough for any card."""


class Tile(NamedTuple):
    """The part of a launch configuration that a table row chooses."""

    block_t: int
    block_k: int
    block_n: int
    num_warps: int
    num_stages: int


def _row(
    tile: Tile,
    evidence: str,
    *,
    measured: bool = False,
    descriptors: bool = False,
    persistent: bool = False,
) -> LaunchConfig:
    return LaunchConfig(
        **tile._asdict(),
        loads="descriptors" if descriptors else "pointers",
        persistent=persistent,
        source="measured" if measured else "compiled",
        evidence=evidence,
    )


_LARGE = Tile(128, 64, 64, 8, 3)
_WGMMA = Tile(128, 64, 128, 8, 3)
_FMA = Tile(64, 32, 32, 4, 2)
_FMA_EVIDENCE = (
    "Triton 3.9: 128 registers, no spill, 16 KiB shared, 4 blocks a multiprocessor, FFMA"
)

# Compiled figures are of d_model 768, d_ff 1536, rows gathered, h written.
_TABLE: dict[tuple[ArchName, Precision], LaunchConfig] = {
    ("sm80", "bf16"): _row(
        _LARGE, "Triton 3.9: 166 registers, no spill, 64 KiB shared, 1 block, HMMA, cp.async"
    ),
    ("sm86", "bf16"): _row(
        _LARGE, "Triton 3.9: 164 registers, no spill, 64 KiB shared, 1 block, HMMA, cp.async"
    ),
    ("sm89", "bf16"): _row(
        _LARGE, "Triton 3.9: 164 registers, no spill, 64 KiB shared, 1 block, HMMA, cp.async"
    ),
    ("sm90", "bf16"): _row(
        _WGMMA,
        "H200, 2026-11-30, torch 2.11, Triton 3.6: 538 TFLOP/s at 65,536 gathered rows of 768 to "
        "1,536 (grouped_mm and compiled silu·mul, rows sorted before: 473)",
        measured=True,
        descriptors=True,
        persistent=True,
    ),
    ("sm100", "bf16"): _row(
        _WGMMA,
        "Triton 3.9: 172 registers, no spill, 144 KiB shared, 1 block, UTCHMMA, TMA and cp.async",
        descriptors=True,
        persistent=True,
    ),
    ("sm103", "bf16"): _row(
        _WGMMA,
        "Triton 3.9: 172 registers, no spill, 144 KiB shared, 1 block, UTCHMMA, TMA and cp.async",
        descriptors=True,
        persistent=True,
    ),
    ("sm120", "bf16"): _row(
        _LARGE, "Triton 3.9: 160 registers, no spill, 64 KiB shared, 1 block, HMMA, cp.async"
    ),
    **{(arch, "fp32"): _row(_FMA, _FMA_EVIDENCE) for arch in ARCHITECTURES},
}
"""For rows that are gathered inside the kernel, as the model's layer does."""

_SORTED_ROWS: dict[tuple[ArchName, Precision], LaunchConfig] = {
    ("sm90", "bf16"): _row(
        Tile(128, 64, 64, 4, 3),
        "H200, 2026-11-30, torch 2.11, Triton 3.6: 542 TFLOP/s at 65,536 sorted rows of 768 to "
        "1,536 (grouped_mm and compiled silu·mul: 473); two programs a multiprocessor hide each "
        "other's epilogue",
        measured=True,
        descriptors=True,
        persistent=True,
    ),
}
NARROW = 1024
"""Up to this d_model a tile has so few steps that hiding its epilogue pays (at 2,048 the larger
tile was the faster one, 582 against 562 TFLOP/s)."""


def choose(
    arch: ArchName, precision: Precision, d_model: int, d_ff: int, kernel: Kernel
) -> LaunchConfig:
    """The launch configuration for an architecture, or the spec's own, checked.

    Args:
        arch: architecture of the card.
        precision: type of the products.
        d_model: width of the reduction.
        d_ff: columns of gate and of up.
        kernel: the spec's `kernel`: `auto`, or a configuration.

    Raises:
        LaunchError: the table has no row, or the configuration cannot run there.
    """
    if kernel != "auto":
        config = of_spec(kernel)
    elif (arch, precision) in _TABLE:
        config = _TABLE[arch, precision]
    else:
        raise LaunchError(
            f"the kernel has no launch configuration for {precision} on {arch}; "
            "set model.moe.dispatch: stacked, or another precision or target"
        )
    problems = judge(config, arch, precision)
    if problems:
        raise LaunchError(f"kernel: {'; '.join(problems)}")
    return config


def choose_sorted(arch: ArchName, precision: Precision, d_model: int, d_ff: int) -> LaunchConfig:
    """The launch configuration for a caller whose rows are sorted already; raises as `choose`."""
    row = _SORTED_ROWS.get((arch, precision)) if d_model <= NARROW else None
    return row or choose(arch, precision, d_model, d_ff, "auto")


def of_spec(kernel: KernelSpec) -> LaunchConfig:
    """A spec's own configuration: pointer loads, one program a tile."""
    return LaunchConfig(
        **kernel.model_dump(), source="spec", evidence="the spec's own `kernel:` block"
    )


def judge(config: LaunchConfig, arch: ArchName, precision: Precision) -> list[str]:
    """Why `config` cannot run on `arch`: no entry when nothing speaks against it."""
    if arch == "cpu":
        return ["the kernel needs a GPU, and the target is cpu; set model.moe.dispatch: stacked"]
    if precision == "bf16" and not ARCHITECTURES[arch].bf16:
        return [f"{arch} has no bf16; set training.precision: fp32 or model.moe.dispatch: stacked"]
    problems = shape_problems(config)
    if problems:
        return problems
    limit = ARCHITECTURES[arch].shared_memory_per_block
    needed = shared_memory_bytes(config, arch, ELEMENT_BYTES[precision])
    if needed > limit:
        problems.append(
            f"{needed:,} bytes of shared memory are needed and a block of {arch} has {limit:,}; "
            "use fewer stages or smaller blocks"
        )
    return problems


def shape_problems(config: LaunchConfig) -> list[str]:
    """What Triton itself refuses, whatever the card."""
    problems = []
    for name, floor in (("block_t", 16), ("block_k", 16), ("block_n", 16), ("num_warps", 1)):
        value = getattr(config, name)
        if value < floor or value & (value - 1):
            problems.append(f"{name} is {value}; it must be a power of two of at least {floor}")
    if config.num_stages < 1:
        problems.append(f"num_stages is {config.num_stages}; it must be at least 1")
    return problems


def shared_memory_bytes(config: LaunchConfig, arch: ArchName, element_bytes: int) -> int:
    """Shared memory of a block, as Triton allocates it (docs/kernel.md compares the two).

    A stage holds a tile of x and one of W1 and W3 together; descriptors add a barrier for each.
    Only asynchronous tensor cores read every stage from shared memory: elsewhere the one in use is
    in registers. The epilogue stages the output.
    """
    stage = (config.block_t + 2 * config.block_n) * config.block_k * element_bytes
    epilogue = config.block_t * config.block_n * element_bytes
    stages = config.num_stages
    if not (element_bytes <= 2 and _asynchronous(config, arch)):
        stages = 1 if arch == "sm75" else max(stages - 1, 1)
    barriers = 8 * config.num_stages if config.loads == "descriptors" else 0
    return max(stages * stage + barriers, epilogue)


def _asynchronous(config: LaunchConfig, arch: ArchName) -> bool:
    """Whether Triton takes the asynchronous tensor cores of sm90 and sm100 for a tile in bf16."""
    if config.block_t < WGMMA_ROWS or config.num_warps % WARP_GROUP:
        return False
    return arch == "sm90" or (arch in ("sm100", "sm103") and config.num_warps <= 2 * WARP_GROUP)


def resident_blocks(config: LaunchConfig) -> int:
    """Programs a multiprocessor of a persistent launch: as many as its shared memory holds.

    Persistence is for sm90 and sm100, whose multiprocessors have the same shared memory, and for
    bf16, the only precision whose rows are persistent.
    """
    limits = ARCHITECTURES["sm90"]
    block = shared_memory_bytes(config, "sm90", ELEMENT_BYTES["bf16"])
    return max(
        limits.shared_memory_per_multiprocessor // (block + limits.shared_memory_reserved), 1
    )


def occupancy(arch: ArchName, *, num_warps: int, registers: int, shared_memory: int) -> int:
    """Blocks that fit on a multiprocessor at a time (the CUDA occupancy calculator's rule).

    Args:
        arch: architecture.
        num_warps: warps of a block.
        registers: registers of a thread, as the assembler reports them.
        shared_memory: bytes of a block, static and dynamic.
    """
    limits = ARCHITECTURES[arch]
    warp_registers = _round_up(registers * limits.warp_size, REGISTER_UNIT)
    block_bytes = _round_up(shared_memory + limits.shared_memory_reserved, SHARED_MEMORY_UNIT)
    warps_by_registers = limits.registers_per_multiprocessor // max(warp_registers, 1)
    # the four schedulers of a multiprocessor each own a quarter of its registers
    warps_by_registers -= warps_by_registers % 4
    return min(
        warps_by_registers // num_warps,
        limits.shared_memory_per_multiprocessor // max(block_bytes, 1),
        limits.warps_per_multiprocessor // num_warps,
        limits.blocks_per_multiprocessor,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
