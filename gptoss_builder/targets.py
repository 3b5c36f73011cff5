"""Cards and architectures: memory, bandwidth, rates, shared memory, registers.

Two tables, written once. Architecture limits are NVIDIA's (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability", and `cuda_occupancy.h`). Card figures come
from the vendor's datasheets unless a row says that they were measured.

Datasheets promise more memory than a program gets. `usable` derives it: the capacity in GiB,
less a sixteenth where GDDR memory carries its error correction inline and has it on by
default, less two percent for the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

from gptoss_builder.errors import TargetError
from gptoss_builder.spec.schema import Frozen

ArchName = Literal["cpu", "sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"]
KIB = 2**10
GIB = 2**30
TERA = 1e12


class Architecture(Frozen):
    """Limits of one compute capability; bytes and counts."""

    name: ArchName
    shared_memory_per_block: int
    """Largest dynamic shared memory a block can opt in to."""
    shared_memory_per_multiprocessor: int
    shared_memory_reserved: int
    """What the driver takes of each block's share."""
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    registers_per_multiprocessor: int = 65536
    """32-bit registers."""
    registers_per_thread: int = 255
    warp_size: int = 32
    dot: Literal["tensor_cores", "fma"]
    """What Triton's `tl.dot` compiles to in bf16 and fp16; fp32 with IEEE products is FMA
    everywhere."""
    bf16: bool
    """Whether bf16 products exist in hardware."""
    grouped_mm: Literal["native", "loop"]
    """`loop`: PyTorch's grouped_mm walks over the groups and waits for the device."""
    grouped_mm_evidence: str
    reference_card: str
    """The card that stands for the architecture when only that is named."""

    @property
    def warps_per_multiprocessor(self) -> int:
        """Resident warps."""
        return self.threads_per_multiprocessor // self.warp_size


class Target(Frozen):
    """One card, as the plan carries it. Rates are dense; 0 where there is none."""

    name: str
    """Name in the table: `h200`, `a100-80gb`, `cpu`."""
    arch: ArchName
    """Architecture of its multiprocessors; `cpu` for none."""
    memory_bytes: int
    """Memory that a program can use; 0 for `cpu`, where no limit is assumed."""
    memory_source: Literal["measured", "derived"]
    """`derived`: from the datasheet's capacity, see the module."""
    multiprocessors: int
    """Streaming multiprocessors; 0 for `cpu`."""
    bandwidth: float
    """Bytes a second between memory and chip, from the datasheet."""
    bf16_rate: float
    """FLOP/s of dense bf16 products with fp32 accumulation; 0 where there is no bf16."""
    fp16_rate: float
    """FLOP/s of dense fp16 products with fp32 accumulation."""
    fp32_rate: float
    """FLOP/s of fp32 without tensor cores (TF32 is not fp32)."""
    evidence: str
    """Where the figures come from."""


def _arch(
    name: ArchName,
    block_kib: int,
    multiprocessor_kib: int,
    threads_and_blocks: tuple[int, int],
    reference_card: str,
) -> Architecture:
    threads, blocks = threads_and_blocks
    turing = name == "sm75"
    native = name in ("sm90", "sm100", "sm103")
    return Architecture(
        name=name,
        shared_memory_per_block=block_kib * KIB,
        shared_memory_per_multiprocessor=multiprocessor_kib * KIB,
        shared_memory_reserved=0 if turing else KIB,
        threads_per_multiprocessor=threads,
        blocks_per_multiprocessor=blocks,
        dot="fma" if turing else "tensor_cores",
        bf16=not turing,
        grouped_mm="native" if native else "loop",
        grouped_mm_evidence=_GROUPED_MM_EVIDENCE.get(
            name, "PyTorch 2.11 and 2.13 loop over the groups outside bf16 on sm90, sm100 and sm103"
        ),
        reference_card=reference_card,
    )


_GROUPED_MM_EVIDENCE = {
    "sm90": "measured: 575 TFLOP/s on an H200, torch 2.11, 65,536 rows of 768 to 2 × 1,536",
    "sm100": "derived: PyTorch's dispatch for compute capability 10.0; not run here",
    "sm103": "derived: taken as sm100; not run here",
}

ARCHITECTURES: Mapping[ArchName, Architecture] = MappingProxyType(
    {
        arch.name: arch
        for arch in (
            _arch("sm75", 64, 64, (1024, 16), "t4"),
            _arch("sm80", 163, 164, (2048, 32), "a100-80gb"),
            _arch("sm86", 99, 100, (1536, 16), "a10"),
            _arch("sm89", 99, 100, (1536, 24), "l4"),
            _arch("sm90", 227, 228, (2048, 32), "h100-80gb"),
            _arch("sm100", 227, 228, (2048, 32), "b200"),
            _arch("sm103", 227, 228, (2048, 32), "b300"),
            _arch("sm120", 99, 100, (1536, 24), "rtx5090"),
        )
    }
)
"""Every architecture that the kernel compiles for, in order of age."""


def usable(capacity_gib: float, *, inline_ecc: bool = False) -> int:
    """Bytes that a program can use of a card sold with `capacity_gib`: see the module."""
    return int(capacity_gib * (15 / 16 if inline_ecc else 1) * 0.98 * GIB)


def _card(
    name: str,
    arch: ArchName,
    size: tuple[float, int, float],
    teraflops: tuple[float, float, float],
    datasheet: str,
    *,
    inline_ecc: bool = False,
    measured_bytes: int | None = None,
    evidence: str = "",
) -> Target:
    capacity_gib, multiprocessors, bandwidth_gb = size
    bf16, fp16, fp32 = teraflops
    return Target(
        name=name,
        arch=arch,
        memory_bytes=measured_bytes or usable(capacity_gib, inline_ecc=inline_ecc),
        memory_source="measured" if measured_bytes else "derived",
        multiprocessors=multiprocessors,
        bandwidth=bandwidth_gb * 1e9,
        bf16_rate=bf16 * TERA,
        fp16_rate=fp16 * TERA,
        fp32_rate=fp32 * TERA,
        evidence=f"{evidence}; {datasheet}" if evidence else datasheet,
    )


CPU = Target(
    name="cpu",
    arch="cpu",
    memory_bytes=0,
    memory_source="derived",
    multiprocessors=0,
    bandwidth=0.0,
    bf16_rate=0.0,
    fp16_rate=0.0,
    fp32_rate=0.0,
    evidence="a processor has no row: nothing is assumed about it",
)

# name, architecture, (GiB, multiprocessors, GB/s), (bf16, fp16, fp32) TFLOP/s, datasheet
CARDS: Mapping[str, Target] = MappingProxyType(
    {
        card.name: card
        for card in (
            CPU,
            _card("gtx1650", "sm75", (4, 14, 128), (0, 5.97, 2.98), "GeForce GTX 1650 (GDDR5)"),
            _card("t4", "sm75", (16, 40, 300), (0, 65, 8.1), "T4 datasheet", inline_ecc=True),
            _card("rtx2080ti", "sm75", (11, 68, 616), (0, 53.8, 13.4), "Turing whitepaper"),
            _card(
                "a100-40gb", "sm80", (40, 108, 1555), (312, 312, 19.5), "A100 datasheet (SXM, PCIe)"
            ),
            _card("a100-80gb", "sm80", (80, 108, 2039), (312, 312, 19.5), "A100 datasheet (SXM)"),
            _card("a10", "sm86", (24, 72, 600), (125, 125, 31.2), "A10 datasheet", inline_ecc=True),
            _card(
                "a40", "sm86", (48, 84, 696), (149.7, 149.7, 37.4), "A40 datasheet", inline_ecc=True
            ),
            _card(
                "a6000",
                "sm86",
                (48, 84, 768),
                (154.8, 154.8, 38.7),
                "RTX A6000 datasheet",
                inline_ecc=True,
            ),
            _card("rtx3090", "sm86", (24, 82, 936), (71, 71, 35.6), "GA102 whitepaper"),
            _card("l4", "sm89", (24, 58, 300), (121, 121, 30.3), "L4 datasheet", inline_ecc=True),
            _card(
                "l40s", "sm89", (48, 142, 864), (362, 362, 91.6), "L40S datasheet", inline_ecc=True
            ),
            _card("rtx4090", "sm89", (24, 128, 1008), (165.2, 165.2, 82.6), "Ada whitepaper"),
            _card("h100-pcie", "sm90", (80, 114, 2000), (756, 756, 51), "H100 datasheet (PCIe)"),
            _card(
                "h100-80gb", "sm90", (80, 132, 3350), (989.4, 989.4, 66.9), "H100 datasheet (SXM)"
            ),
            _card(
                "h200",
                "sm90",
                (141, 132, 4800),
                (989.4, 989.4, 66.9),
                "rates and bandwidth: H200 datasheet (SXM)",
                measured_bytes=150_109_880_320,
                evidence="memory: what a program sees on an H200, driver 580.159 (nvidia-smi shows "
                "0.60 GiB more)",
            ),
            _card(
                "b200", "sm100", (180, 148, 7700), (2250, 2250, 75), "HGX B200 datasheet, one of 8"
            ),
            _card(
                "b300", "sm103", (270, 148, 7700), (2250, 2250, 75), "HGX B300 datasheet, one of 8"
            ),
            _card(
                "rtx5090",
                "sm120",
                (32, 170, 1792),
                (209.5, 209.5, 104.8),
                "RTX Blackwell whitepaper",
            ),
        )
    }
)
"""Every card, `cpu` included. Only the H200 was measured; the others are derived."""


def lookup(name: str, *, keep: str | None = None) -> Target:
    """The card that `name` stands for: a card, an architecture, or `cpu`; any case.

    An architecture means its reference card, unless `keep`, the name in the spec, is a card
    of that architecture: then that card stays.

    Raises:
        TargetError: no row has that name; the message names the nearest ones.
    """
    key = name.strip().lower()
    if key in CARDS:
        return CARDS[key]
    for arch in ARCHITECTURES.values():
        if arch.name == key:
            kept = CARDS.get(keep.strip().lower()) if keep is not None else None
            if kept is not None and kept.arch == key:
                return kept
            return CARDS[arch.reference_card]
    raise TargetError(f"unknown target {name!r}; {_suggestion(key)}")


def _suggestion(key: str) -> str:
    known = [*CARDS, *ARCHITECTURES]
    plain = "".join(character for character in key if character.isalnum())
    near = [
        other
        for other in known
        if plain and (other.replace("-", "").startswith(plain) or plain == other.replace("-", ""))
    ] or get_close_matches(key, known, n=3)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known are {', '.join(known)}"
