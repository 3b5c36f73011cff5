"""The Triton kernel of the W1/W3 op: the only one in this project.

One launch computes `silu(x W1ᵀ) · (x W3ᵀ)` for all experts. A row tile belongs to one expert;
which one, each program works out from the offsets on the device, so that the host never waits
and the grid follows from shapes alone. Rows can be gathered through an index while they are
loaded, which spares the sorted copy of x.

Rows and columns past an edge are not masked while loading: they read some valid row, and no
product mixes two rows or two columns, so it is enough not to store them.
"""

# Triton reads an annotation as a type of its own, so the kernel's arguments have none:
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

# R rows sorted by expert, T tokens, D model width, E experts, F hidden width of an expert;
# in the kernel T, N and K are the sides of a tile: BLOCK_T, BLOCK_N and BLOCK_K,
# and gate_up_TN is `[T, 2N]`

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from subprocess import SubprocessError
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError
from triton.tools.tensor_descriptor import TensorDescriptor

from gptoss_builder.errors import DeviceError, InputError, KernelError

EXPERT_CHUNK = 1024
"""Experts whose offsets a program reads at a time."""
ROW_TILES_PER_GROUP = 16
"""Row tiles that share the columns' weights in L2 before the next columns are taken."""
BACKWARD_BLOCK = 2048
"""Columns that a program of the backward kernel takes at a time."""
BACKWARD_WARPS = 4
"""Warps of a program of the backward kernel."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def find_expert(offsets_ptr, row_tile, E: tl.constexpr, CHUNK: tl.constexpr, BLOCK_T: tl.constexpr):
    """Find a row tile's expert, the first tile of that expert, and the number of all tiles."""
    expert = 0
    first_tile = 0
    tiles = 0
    for chunk in range(0, E, CHUNK):
        e = chunk + tl.arange(0, CHUNK)
        end = tl.load(offsets_ptr + e, mask=e < E, other=0)
        start = tl.load(offsets_ptr + e - 1, mask=(e > 0) & (e < E), other=0)
        count = tl.where(e < E, (end - start + BLOCK_T - 1) // BLOCK_T, 0)
        tile_end = tiles + tl.cumsum(count, 0)
        before = (tile_end <= row_tile) & (e < E)
        expert += tl.sum(before.to(tl.int32), 0)
        first_tile = tl.maximum(first_tile, tl.max(tl.where(before, tile_end, 0), 0))
        tiles += tl.sum(count, 0)
    return expert, first_tile, tiles


@triton.jit
def sigmoid(x):
    """Logistic function to fp32 accuracy: a squared reciprocal root is cheaper than a division."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@triton.jit
def load_tile(base, row_R, k_K, stride_row, stride_k, D: tl.constexpr, MASK_K: tl.constexpr):
    """Load the `[R, K]` tile of the rows `row_R` of a matrix with D columns."""
    pointer_RK = base + row_R[:, None] * stride_row + k_K[None, :] * stride_k
    if MASK_K:
        return tl.load(pointer_RK, mask=k_K[None, :] < D, other=0.0)
    return tl.load(pointer_RK)


@triton.jit
def w1w3_kernel(
    x,
    w13,
    rows_ptr,
    offsets_ptr,
    h_ptr,
    gate_up_ptr,
    stride_xt,
    stride_xd,
    stride_we,
    stride_wn,
    stride_wk,
    D: tl.constexpr,
    F: tl.constexpr,
    E: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
    GATHER: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    WRITE_H: tl.constexpr,
    WRITE_GATE_UP: tl.constexpr,
):
    """Walk over output tiles `[T, N]` of gate and up; a grid of one program a tile walks once.

    A tile of weights holds N rows of W1 and the N rows of W3 of the same columns, so that one
    product gives gate and up. With DESCRIPTORS w13 is a tensor descriptor of `[E, 2, F, D]`, and
    so is x of `[R, D]` unless its rows are gathered; otherwise they are pointers.
    """
    MASK_K: tl.constexpr = D % BLOCK_K != 0
    COLUMN_TILES: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    _, _, row_tiles = find_expert(offsets_ptr, 0, E, CHUNK, BLOCK_T)

    for tile in range(tl.program_id(0), row_tiles * COLUMN_TILES, tl.num_programs(0)):
        group = tile // (GROUP * COLUMN_TILES)
        group_rows = tl.minimum(row_tiles - group * GROUP, GROUP)
        in_group = tile % (GROUP * COLUMN_TILES)
        row_tile = group * GROUP + in_group % group_rows
        column = in_group // group_rows * BLOCK_N

        expert, first_tile, _ = find_expert(offsets_ptr, row_tile, E, CHUNK, BLOCK_T)
        end = tl.load(offsets_ptr + expert)
        row = tl.load(offsets_ptr + expert - 1, mask=expert > 0, other=0)
        row += (row_tile - first_tile) * BLOCK_T
        row_T = row + tl.arange(0, BLOCK_T)
        token_T = tl.minimum(row_T, end - 1)
        if GATHER:
            token_T = tl.load(rows_ptr + token_T)
        token_T = token_T.to(tl.int64)
        w = w13
        column_2N = tl.arange(0, 2 * BLOCK_N)
        if not DESCRIPTORS:
            w += expert.to(tl.int64) * stride_we
            column_2N = tl.minimum(column + column_2N % BLOCK_N, F - 1) + column_2N // BLOCK_N * F
        gate_up_TN = tl.zeros((BLOCK_T, 2 * BLOCK_N), dtype=tl.float32)
        for k in range(0, D, BLOCK_K):
            k_K = k + tl.arange(0, BLOCK_K)
            if DESCRIPTORS and not GATHER:
                x_TK = x.load([row, k])
            else:
                x_TK = load_tile(x, token_T, k_K, stride_xt, stride_xd, D, MASK_K)
            if DESCRIPTORS:
                w_NK = w.load([expert, 0, column, k]).reshape(2 * BLOCK_N, BLOCK_K)
            else:
                w_NK = load_tile(w, column_2N, k_K, stride_wn, stride_wk, D, MASK_K)
            gate_up_TN = tl.dot(x_TK, w_NK.T, gate_up_TN, input_precision="ieee")
        gate_TN, up_TN = gate_up_TN.reshape(BLOCK_T, 2, BLOCK_N).permute(0, 2, 1).split()

        n_N = column + tl.arange(0, BLOCK_N)
        mask_TN = (row_T < end)[:, None] & (n_N < F)[None, :]
        out_T = row_T.to(tl.int64)
        if WRITE_GATE_UP:
            pointer_TN = gate_up_ptr + out_T[:, None] * (2 * F) + n_N[None, :]
            tl.store(pointer_TN, gate_TN.to(gate_up_ptr.dtype.element_ty), mask=mask_TN)
            tl.store(pointer_TN + F, up_TN.to(gate_up_ptr.dtype.element_ty), mask=mask_TN)
        if WRITE_H:
            h_TN = gate_TN * sigmoid(gate_TN) * up_TN
            pointer_TN = h_ptr + out_T[:, None] * F + n_N[None, :]
            tl.store(pointer_TN, h_TN.to(h_ptr.dtype.element_ty), mask=mask_TN)


@triton.jit
def w1w3_backward_kernel(
    gate_up_ptr,
    dgate_up_ptr,
    dh_ptr,
    scale_ptr,
    dscale_ptr,
    F: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Backward of `scale · silu(gate) · up`, one row a program, in place of dh."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(scale_ptr + row) if HAS_SCALE else 1.0
    dscale_F = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, F, BLOCK):
        column_F = start + tl.arange(0, BLOCK)
        mask_F = column_F < F
        gate = gate_up_ptr + row * 2 * F + column_F
        dgate = dgate_up_ptr + row * 2 * F + column_F
        dh = dh_ptr + row * F + column_F
        gate_F = tl.load(gate, mask=mask_F, other=0.0).to(tl.float32)
        up_F = tl.load(gate + F, mask=mask_F, other=0.0).to(tl.float32)
        dh_F = tl.load(dh, mask=mask_F, other=0.0).to(tl.float32)
        sigmoid_F = sigmoid(gate_F)
        silu_F = gate_F * sigmoid_F
        h_F = silu_F * up_F
        dscale_F += h_F * dh_F
        dh_F *= scale
        dgate_F = dh_F * up_F * (sigmoid_F + silu_F * (1.0 - sigmoid_F))
        tl.store(dgate, dgate_F.to(dgate_up_ptr.dtype.element_ty), mask=mask_F)
        tl.store(dgate + F, (dh_F * silu_F).to(dgate_up_ptr.dtype.element_ty), mask=mask_F)
        tl.store(dh, (h_F * scale).to(dh_ptr.dtype.element_ty), mask=mask_F)
    tl.store(dscale_ptr + row, tl.sum(dscale_F, 0))


def launch_up(
    x_TD: Tensor,
    w13_EFD: Tensor,
    offsets_E: Tensor,
    rows_R: Tensor | None,
    launch: Sequence[int],
    *,
    write_h: bool,
    write_gate_up: bool,
) -> tuple[Tensor, Tensor]:
    """Run the kernel.

    Args:
        x_TD: tokens, or rows sorted by expert when `rows_R` is None.
        w13_EFD: `[E, 2F, D]` of the same dtype.
        offsets_E: int32, the end of each expert's rows.
        rows_R: the token of each row.
        launch: what `up.encode_launch` wrote.
        write_h: compute h `[R, F]`.
        write_gate_up: write gate and up `[R, 2F]`.

    Returns:
        h, and gate and up; one that is not asked for is empty.

    Raises:
        InputError: a dtype that the kernel does not take, or strides that a descriptor cannot.
        DeviceError: the tensors are not on a GPU.
        KernelError: the kernel does not compile or launch.
    """
    check_runnable(x_TD)
    block_t, block_k, block_n, num_warps, num_stages, descriptors, resident = launch
    rows = x_TD.shape[0] if rows_R is None else rows_R.shape[0]
    experts, double_ff, d_model = w13_EFD.shape
    h_RF = x_TD.new_empty(rows, double_ff // 2) if write_h else x_TD.new_empty(0)
    gate_up_RF = x_TD.new_empty(rows, double_ff) if write_gate_up else x_TD.new_empty(0)
    if rows == 0:
        return h_RF, gate_up_RF
    x_TD, w13_EFD = with_short_strides(x_TD), with_short_strides(w13_EFD)
    offsets_E, rows_R = offsets_E.contiguous(), None if rows_R is None else rows_R.contiguous()
    programs = (triton.cdiv(rows, block_t) + experts) * triton.cdiv(double_ff // 2, block_n)
    if resident:
        programs = min(programs, resident * multiprocessors(x_TD.device))
    x, w13 = (
        describe(x_TD, w13_EFD, rows_R, block_t, block_k, block_n)
        if descriptors
        else (x_TD, w13_EFD)
    )
    what = (
        f"the W1/W3 kernel ({block_t}×{block_k}×{block_n}, {num_warps} warps, {num_stages} stages)"
    )
    with torch.cuda.device_of(x_TD), kernel_errors(what, x_TD.device):
        w1w3_kernel[(programs,)](
            x,
            w13,
            rows_R,
            offsets_E,
            h_RF,
            gate_up_RF,
            *x_TD.stride(),
            *w13_EFD.stride(),
            D=d_model,
            F=double_ff // 2,
            E=experts,
            CHUNK=min(triton.next_power_of_2(experts), EXPERT_CHUNK),
            BLOCK_T=block_t,
            BLOCK_K=block_k,
            BLOCK_N=block_n,
            GROUP=ROW_TILES_PER_GROUP,
            GATHER=rows_R is not None,
            DESCRIPTORS=bool(descriptors),
            WRITE_H=write_h,
            WRITE_GATE_UP=write_gate_up,
            num_warps=num_warps,
            num_stages=num_stages,
            enable_fp_fusion=True,
        )
    return h_RF, gate_up_RF


def launch_activation_backward(
    gate_up_RF: Tensor, dgate_up_RF: Tensor, dh_RF: Tensor, scale_R: Tensor | None
) -> Tensor:
    """Run the backward of the activation; see `up.triton_activation_backward`.

    Raises:
        InputError, DeviceError, KernelError: as `launch_up`.
    """
    check_runnable(dh_RF)
    rows, d_ff = dh_RF.shape
    dscale_R = dh_RF.new_empty(rows, dtype=torch.float32)
    if rows == 0:
        return dscale_R
    with torch.cuda.device_of(dh_RF), kernel_errors("the W1/W3 backward kernel", dh_RF.device):
        w1w3_backward_kernel[(rows,)](
            gate_up_RF,
            dgate_up_RF,
            dh_RF,
            scale_R,
            dscale_R,
            F=d_ff,
            BLOCK=min(triton.next_power_of_2(d_ff), BACKWARD_BLOCK),
            HAS_SCALE=scale_R is not None,
            num_warps=BACKWARD_WARPS,
            enable_fp_fusion=True,
        )
    return dscale_R


def check_runnable(x: Tensor) -> None:
    """Refuse a dtype or a device that the kernel cannot take; raises InputError, DeviceError."""
    if x.dtype not in DTYPES:
        raise InputError(f"the Triton kernel takes bf16, fp16 and fp32, not {x.dtype}")
    if not (x.is_cuda or triton.knobs.runtime.interpret):
        raise DeviceError(
            f"the Triton kernel needs tensors on a CUDA GPU, and these are on {x.device}; move "
            "them, or set model.moe.dispatch: stacked"
        )


@contextmanager
def kernel_errors(what: str, device: torch.device) -> Iterator[None]:
    """Turn a failure to compile or to launch into a KernelError that says what to set."""
    try:
        yield
    # beside its own errors, Triton lets through those of the C compiler that builds its launcher
    # (no Python.h, say) and of its cache folder
    except (TritonError, RuntimeError, SubprocessError, OSError) as error:
        raise KernelError(
            f"{what} failed on {device}: {error}; set another `kernel:` or "
            "model.moe.dispatch: stacked"
        ) from error


def describe(
    x_TD: Tensor, w13_EFD: Tensor, rows_R: Tensor | None, block_t: int, block_k: int, block_n: int
) -> tuple[Any, TensorDescriptor]:
    """Tensor descriptors of w13 as `[E, 2, F, D]` and, unless its rows are gathered, of x."""
    experts, double_ff, d_model = w13_EFD.shape
    check_describable("w13", w13_EFD)
    w13_E2FD = w13_EFD.view(experts, 2, double_ff // 2, d_model)
    w13 = TensorDescriptor.from_tensor(w13_E2FD, [1, 2, block_n, block_k])
    if rows_R is not None:
        return x_TD, w13
    check_describable("x", x_TD)
    return TensorDescriptor.from_tensor(x_TD, [block_t, block_k]), w13


def check_describable(name: str, tensor: Tensor) -> None:
    """Refuse what the copy engine cannot read; raises InputError."""
    row_bytes = tensor.shape[-1] * tensor.element_size()
    if not tensor.is_contiguous() or row_bytes % 16 or tensor.data_ptr() % 16:
        raise InputError(
            f"{name} has strides {tensor.stride()} from byte {tensor.data_ptr() % 16} of 16, and a "
            "tensor descriptor needs a contiguous tensor whose rows start at multiples of 16 "
            "bytes; use loads: pointers"
        )


def with_short_strides(x: Tensor) -> Tensor:
    """Return `x`, copied where a column's offset would not fit the kernel's 32 bits."""
    columns = zip(x.shape[-2:], x.stride()[-2:], strict=True)
    rows, inner = ((size - 1) * stride for size, stride in columns)
    fits = inner < 2**31 and (x.dim() == 2 or rows + inner < 2**31)
    return x if fits else x.contiguous()


def multiprocessors(device: torch.device) -> int:
    """Programs of a persistent launch; the interpreter on a CPU gets two."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
