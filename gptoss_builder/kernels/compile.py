"""Compile the W1/W3 kernel for a card that is not there.

    python -m gptoss_builder.kernels.compile FOLDER < requests.json

reads a list of `plan.aot.CompileRequest`, writes `FOLDER/<index>.cubin` for each, and prints
one line of JSON with the figures. `plan.aot` starts it; nothing else needs to.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource
from triton.errors import TritonError

from gptoss_builder.kernels.w1w3_triton import (
    BACKWARD_BLOCK,
    BACKWARD_WARPS,
    EXPERT_CHUNK,
    ROW_TILES_PER_GROUP,
    w1w3_backward_kernel,
    w1w3_kernel,
)
from gptoss_builder.plan.aot import CompileRequest

INSTRUCTIONS = (
    "HMMA", "HGMMA", "UTCHMMA", "OMMA", "FFMA", "UTMALDG", "LDGSTS", "LDL", "STL", "MUFU"
)  # fmt: skip
"""Opcodes that are counted: matrix products, fp32 products, bulk and asynchronous loads, spills."""
TYPES = {"bf16": "bf16", "fp32": "fp32"}


def main() -> None:
    """Compile what standard input asks for."""
    folder = Path(sys.argv[1])
    figures = [
        compile_one(CompileRequest.model_validate(request), folder / f"{index}.cubin")
        for index, request in enumerate(json.load(sys.stdin))
    ]
    sys.stdout.write(json.dumps(figures) + "\n")


def compile_one(request: CompileRequest, cubin: Path) -> dict[str, Any]:
    """Compile one request; returns the figures of a `CompileReport`, or its `error`."""
    capability = int(request.arch.removeprefix("sm"))
    launch = request.launch
    if request.kernel == "up":
        what = up_source(request)
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    else:
        what, options = backward_source(request), {"num_warps": BACKWARD_WARPS}
    start = time.perf_counter()
    try:
        kernel: Any = triton.compile(
            what,
            target=GPUTarget("cuda", capability, 32),
            options={**options, "enable_fp_fusion": True},
        )
    except (TritonError, RuntimeError) as error:
        return {"error": str(error).strip()[-2000:] or type(error).__name__}
    cubin.write_bytes(kernel.asm["cubin"])
    registers, spills = assembler_report(kernel.asm["ptx"], capability, cubin.with_suffix(".ptx"))
    return {
        "num_warps": kernel.metadata.num_warps,
        "registers": registers,
        "spill_bytes": spills,
        "shared_memory_bytes": kernel.metadata.shared,
        "instructions": count_instructions(cubin, capability),
        "trap": "trap;" in kernel.asm["ptx"],
        "triton": triton.__version__,
        "seconds": round(time.perf_counter() - start, 3),
    }


def up_source(request: CompileRequest) -> ASTSource:
    """Describe the kernel's arguments as a launch with contiguous tensors specialises them."""
    launch, dtype = request.launch, TYPES[request.precision]
    double_ff, d_model = 2 * request.d_ff, request.d_model
    descriptors = launch.loads == "descriptors"
    x = f"tensordesc<{dtype}[{launch.block_t}, {launch.block_k}]>"
    w13 = f"tensordesc<{dtype}[1, 2, {launch.block_n}, {launch.block_k}]>"
    signature = {
        "x": x if descriptors and not request.gather else f"*{dtype}",
        "w13": w13 if descriptors else f"*{dtype}",
        "offsets_ptr": "*i32",
        "h_ptr": f"*{dtype}",
        "gate_up_ptr": f"*{dtype}",
        "stride_xt": "i32",
        "stride_we": "i32",
        "stride_wn": "i32",
    }
    constants: dict[str, Any] = {
        "stride_xd": 1,
        "stride_wk": 1,
        "D": d_model,
        "F": request.d_ff,
        "E": request.experts,
        "CHUNK": min(triton.next_power_of_2(request.experts), EXPERT_CHUNK),
        "BLOCK_T": launch.block_t,
        "BLOCK_K": launch.block_k,
        "BLOCK_N": launch.block_n,
        "GROUP": ROW_TILES_PER_GROUP,
        "GATHER": request.gather,
        "DESCRIPTORS": descriptors,
        "WRITE_H": request.write_h,
        "WRITE_GATE_UP": request.write_gate_up,
    }
    if request.gather:
        signature["rows_ptr"] = "*i64"
    else:
        constants["rows_ptr"] = None
    strides = {"stride_xt": d_model, "stride_we": double_ff * d_model, "stride_wn": d_model}
    divisible = [name for name, stride in strides.items() if stride % 16 == 0]
    return describe(w1w3_kernel, signature, constants, divisible)


def backward_source(request: CompileRequest) -> ASTSource:
    """Describe the arguments of the activation's backward."""
    pointer = f"*{TYPES[request.precision]}"
    signature = dict.fromkeys(("gate_up_ptr", "dgate_up_ptr", "dh_ptr"), pointer)
    signature["dscale_ptr"] = "*fp32"
    scaled = request.kernel == "activation_backward"
    constants: dict[str, Any] = {
        "F": request.d_ff,
        "BLOCK": min(triton.next_power_of_2(request.d_ff), BACKWARD_BLOCK),
        "HAS_SCALE": scaled,
    }
    if scaled:
        signature["scale_ptr"] = "*fp32"
    else:
        constants["scale_ptr"] = None
    return describe(w1w3_backward_kernel, signature, constants, [])


def describe(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], divisible: list[str]
) -> ASTSource:
    """Write a kernel's arguments as Triton wants them; pointers are aligned to 16 bytes."""
    names = kernel.arg_names
    signature = {name: signature.get(name, "constexpr") for name in names}
    aligned = {name for name, kind in signature.items() if kind.startswith("*")}.union(divisible)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in sorted(aligned)}
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def assembler_report(ptx: str, capability: int, scratch: Path) -> tuple[int, int]:
    """Registers and spilled bytes, from Triton's own assembler run once more with `-v`."""
    scratch.write_text(ptx, encoding="utf-8")
    result = subprocess.run(
        [
            get_ptxas(capability).path,
            "-v",
            f"--gpu-name={sm_arch_from_capability(capability)}",
            str(scratch),
            "-o",
            str(scratch.with_suffix(".check")),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    registers = re.search(r"Used (\d+) registers", result.stderr)
    spills = re.search(r"(\d+) bytes spill stores", result.stderr)
    if registers is None or spills is None:
        raise SystemExit(f"the assembler's report cannot be read: {result.stderr}")
    return int(registers[1]), int(spills[1])


def count_instructions(cubin: Path, capability: int) -> dict[str, int]:
    """Count the opcodes of `INSTRUCTIONS` in the machine code."""
    disassembler = Path(get_ptxas(capability).path).with_name("nvdisasm")
    listing = subprocess.run(
        [str(disassembler), "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    # an opcode follows the address and, where there is one, a predicate: `@!P0 HGMMA.64x256…`
    opcodes = Counter(re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]+)", listing))
    return {name: opcodes[name] for name in INSTRUCTIONS if opcodes[name]}


if __name__ == "__main__":
    main()
