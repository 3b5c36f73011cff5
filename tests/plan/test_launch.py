"""The launch table and what is judged of a configuration without a GPU."""

from __future__ import annotations

import pytest

from gptoss_builder.errors import LaunchError
from gptoss_builder.plan.launch import (
    SEED,
    choose,
    judge,
    occupancy,
    of_spec,
    resident_blocks,
    shared_memory_bytes,
)
from gptoss_builder.plan.schema import LaunchConfig
from gptoss_builder.spec.schema import KernelSpec
from gptoss_builder.targets import ARCHITECTURES


def config(t: int, k: int, n: int, warps: int, stages: int, **more: object) -> LaunchConfig:
    values = {"block_t": t, "block_k": k, "block_n": n, "num_warps": warps, "num_stages": stages}
    return LaunchConfig(**values, source="spec", evidence="test", **more)


@pytest.mark.parametrize("arch", list(ARCHITECTURES))
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_every_row_fits_its_architecture_and_names_its_evidence(arch, precision):
    if arch == "sm75" and precision == "bf16":
        with pytest.raises(LaunchError, match=r"bf16 on sm75.*stacked"):
            choose(arch, precision, 768, 1536, "auto")
        return
    row = choose(arch, precision, 768, 1536, "auto")
    bytes_of = {"bf16": 2, "fp32": 4}[precision]
    limit = ARCHITECTURES[arch].shared_memory_per_block
    assert shared_memory_bytes(row, arch, bytes_of) <= limit
    assert row.evidence
    assert row.source == ("measured" if (arch, precision) == ("sm90", "bf16") else "compiled")


# what Triton 3.9 allocated in compiles of this kernel: arch, bytes, configuration, shared memory
COMPILED = [
    ("sm80", 2, config(128, 64, 64, 8, 3), 65536),
    ("sm80", 2, config(128, 64, 64, 8, 2), 32768),
    ("sm86", 2, config(64, 64, 64, 4, 3), 49152),
    ("sm120", 2, config(128, 32, 128, 8, 3), 49152),
    ("sm90", 2, config(128, 64, 128, 8, 3, loads="descriptors"), 147480),
    ("sm90", 2, config(128, 64, 64, 4, 3, loads="descriptors"), 98328),
    # too few rows or warps for the asynchronous tensor cores, or too many warps for sm100's
    ("sm90", 2, config(32, 128, 128, 4, 3), 147456),
    ("sm90", 2, config(16, 256, 32, 4, 3), 81920),
    ("sm90", 2, config(64, 32, 32, 8, 2), 16384),
    ("sm100", 2, config(16, 256, 128, 16, 2), 139264),
    ("sm100", 2, config(64, 64, 64, 16, 3), 49152),
    ("sm90", 4, config(64, 32, 32, 4, 2), 16384),
    ("sm75", 4, config(32, 32, 32, 4, 2), 12288),
    ("sm75", 4, config(16, 32, 32, 4, 1), 10240),
]


@pytest.mark.parametrize(("arch", "element_bytes", "launch", "allocated"), COMPILED)
def test_shared_memory_is_what_the_compiler_allocates(arch, element_bytes, launch, allocated):
    assert shared_memory_bytes(launch, arch, element_bytes) == allocated


def test_sm100_needs_a_few_barriers_more_than_the_formula():
    launch = config(128, 64, 128, 8, 3, loads="descriptors")
    assert 0 <= 147504 - shared_memory_bytes(launch, "sm100", 2) <= 64


def test_a_small_tile_with_many_stages_is_not_refused_for_what_it_does_not_take():
    assert judge(config(32, 128, 128, 4, 4), "sm90", "bf16") == []  # Triton 3.9: 221,184 bytes
    (problem,) = judge(config(64, 128, 128, 4, 4), "sm90", "bf16")
    assert "327,680 bytes" in problem


def test_a_tile_tuned_for_a_large_card_is_refused_on_a_small_one():
    launch = config(128, 64, 128, 8, 4)
    assert not judge(launch, "sm80", "bf16")
    (problem,) = judge(launch, "sm86", "bf16")
    assert "147,456 bytes of shared memory" in problem
    assert "101,376" in problem
    fewer = config(128, 64, 128, 8, 3)  # 98,304 bytes in bf16, twice that in fp32
    assert judge(fewer, "sm86", "bf16") == []
    assert "196,608" in judge(fewer, "sm86", "fp32")[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_t": 48}, "block_t is 48"),
        ({"block_k": 8}, "block_k is 8"),
        ({"num_warps": 3}, "num_warps is 3"),
    ],
)
def test_what_triton_refuses_is_refused_in_words(change, message):
    values = {"block_t": 64, "block_k": 32, "block_n": 32, "num_warps": 4, "num_stages": 2}
    kernel = KernelSpec(**values | change)
    with pytest.raises(LaunchError, match=message):
        choose("sm80", "bf16", 768, 1536, kernel)


def test_a_specs_own_configuration_is_carried_as_it_is():
    kernel = KernelSpec(block_t=16, block_k=32, block_n=32, num_warps=4, num_stages=1)
    launch = choose("sm75", "fp32", 768, 1536, kernel)
    assert launch == of_spec(kernel)
    assert launch.source == "spec"
    assert launch.model_dump(include=set(KernelSpec.model_fields)) == SEED.model_dump(
        include=set(KernelSpec.model_fields)
    )


def test_cpu_has_no_kernel():
    with pytest.raises(LaunchError, match="cpu"):
        choose("cpu", "fp32", 768, 1536, "auto")


@pytest.mark.parametrize(
    ("arch", "warps", "registers", "shared", "blocks"),
    [
        # by hand from the occupancy calculator's rules
        ("sm90", 8, 168, 147480, 1),  # shared memory: 228 KiB holds one
        ("sm90", 4, 165, 98328, 2),  # shared memory: two
        ("sm80", 8, 128, 32768, 2),  # registers: 65,536 / (128 · 256)
        ("sm80", 4, 96, 12288, 5),  # registers: 21 warps, 20 by quarters, 5 blocks
        ("sm86", 4, 32, 1024, 12),  # threads: 1,536 / 128
        ("sm75", 1, 32, 1024, 16),  # blocks
    ],
)
def test_occupancy_is_the_scarcest_resource(arch, warps, registers, shared, blocks):
    found = occupancy(arch, num_warps=warps, registers=registers, shared_memory=shared)
    assert found == blocks


def test_persistent_programs_are_as_many_as_shared_memory_holds():
    assert resident_blocks(config(128, 64, 128, 8, 3, loads="descriptors")) == 1
    assert resident_blocks(config(128, 64, 64, 4, 3, loads="descriptors")) == 2
