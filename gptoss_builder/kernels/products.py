"""Products of rows that are sorted by expert, in plain PyTorch.

`grouped_mm` is `torch.nn.functional.grouped_mm`; `loop` is one matrix product an expert and
waits for the device to learn the row counts; `dense` is for a single expert that takes every
row. Nothing here chooses between them: the plan does.
"""

# R rows sorted by expert, E experts, K and N the two widths of a weight

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional

from gptoss_builder.errors import DeviceError, InputError
from gptoss_builder.kernels.launches import launches
from gptoss_builder.kernels.opaque import opaque
from gptoss_builder.plan.resolve import GROUPED_MM_EXPERTS

GROUPED_MM_MAJORS = (9, 10)
"""Major compute capabilities on which torch has a grouped kernel; elsewhere it loops."""
GROUPED_MM_MULTIPLE = 8
"""`grouped_mm` wants strides that are multiples of 16 bytes: 8 elements of bf16."""


def rows_product(x_RK: Tensor, w_EKN: Tensor, offsets_E: Tensor, how: str) -> Tensor:
    """Multiply each row by its expert's matrix.

    Args:
        x_RK: rows, those of expert 0 first.
        w_EKN: one matrix an expert, of the dtype of `x_RK`; any strides.
        offsets_E: int32, the end of each expert's rows; the last is R.
        how: `grouped_mm`, `loop` or `dense`.

    Returns:
        `[R, N]`, contiguous, of the dtype of `x_RK`.

    Raises:
        DeviceError: `grouped_mm` on a card where torch has no such kernel.
    """
    launches[f"products:{how}"] += 1
    if x_RK.shape[0] == 0:
        return x_RK.new_empty(0, w_EKN.shape[2])
    y_RN: Tensor
    if how == "grouped_mm":
        if x_RK.is_cuda:
            check_device(x_RK.device)
        x_RK, w_EKN = with_grouped_strides(x_RK), with_grouped_strides(w_EKN)
        y_RN = functional.grouped_mm(x_RK, w_EKN, offs=offsets_E.contiguous())
    elif how == "dense":
        y_RN = x_RK @ w_EKN[0]
    else:
        y_RN = loop_rows(x_RK, w_EKN, offsets_E)
    return y_RN


def weights_product(g_RN: Tensor, x_RK: Tensor, offsets_E: Tensor, how: str) -> Tensor:
    """Sum the outer products `g ⊗ x` over each expert's rows: the gradient of a weight.

    An expert without rows gets zeros.

    Args:
        g_RN: gradient of the rows that came out of the product.
        x_RK: rows that went into it.
        offsets_E: int32, the end of each expert's rows; the last is R.
        how: `grouped_mm`, `loop` or `dense`.

    Returns:
        `[E, N, K]`, contiguous, of the dtype of `g_RN`.
    """
    launches[f"products:{how}"] += 1
    if x_RK.shape[0] == 0:
        return g_RN.new_zeros(offsets_E.shape[0], g_RN.shape[1], x_RK.shape[1])
    dw_ENK: Tensor
    if how == "grouped_mm":
        if x_RK.is_cuda:
            check_device(x_RK.device)
        g_RN, x_RK = with_grouped_strides(g_RN), with_grouped_strides(x_RK)
        dw_ENK = functional.grouped_mm(g_RN.t(), x_RK, offs=offsets_E.contiguous())
    elif how == "dense":
        dw_ENK = (g_RN.t() @ x_RK)[None]
    else:
        dw_ENK = loop_weights(g_RN, x_RK, offsets_E)
    return dw_ENK


def _fake_loop_rows(x_RK: Tensor, w_EKN: Tensor, _: Tensor) -> Tensor:
    return x_RK.new_empty(x_RK.shape[0], w_EKN.shape[2])


@opaque(_fake_loop_rows)
def loop_rows(x_RK: Tensor, w_EKN: Tensor, offsets_E: Tensor) -> Tensor:
    """`rows_product` by one matrix product an expert."""
    out_RN = x_RK.new_empty(x_RK.shape[0], w_EKN.shape[2])
    for expert, (start, end) in enumerate(loop_ranges(offsets_E, x_RK.shape[0])):
        torch.mm(x_RK[start:end], w_EKN[expert], out=out_RN[start:end])
    return out_RN


def _fake_loop_weights(g_RN: Tensor, x_RK: Tensor, offsets_E: Tensor) -> Tensor:
    return g_RN.new_empty(offsets_E.shape[0], g_RN.shape[1], x_RK.shape[1])


@opaque(_fake_loop_weights)
def loop_weights(g_RN: Tensor, x_RK: Tensor, offsets_E: Tensor) -> Tensor:
    """`weights_product` by one matrix product an expert."""
    out_ENK = g_RN.new_empty(offsets_E.shape[0], g_RN.shape[1], x_RK.shape[1])
    for expert, (start, end) in enumerate(loop_ranges(offsets_E, x_RK.shape[0])):
        torch.mm(g_RN[start:end].t(), x_RK[start:end], out=out_ENK[expert])
    return out_ENK


def loop_ranges(offsets_E: Tensor, rows: int) -> list[tuple[int, int]]:
    """Read the experts' row ranges on the host; this waits for the device.

    Raises:
        InputError: the offsets fall, or do not end at the number of rows.
    """
    ends = offsets_E.tolist()
    starts = [0, *ends[:-1]]
    if any(end < start for start, end in zip(starts, ends, strict=True)) or ends[-1] != rows:
        raise InputError(
            f"offsets {ends} do not divide {rows} rows among experts; "
            "give the running sum of the experts' row counts"
        )
    return list(zip(starts, ends, strict=True))


def with_grouped_strides(x: Tensor) -> Tensor:
    """Return `x`, copied where `grouped_mm` cannot read its strides or the place it starts at."""
    *outer, rows, columns = x.stride()
    height, width = x.shape[-2:]
    by_rows, by_columns = columns == 1 and rows >= width, rows == 1 and columns >= height
    steps = (*outer, rows if by_rows else columns, x.storage_offset())
    aligned = all(step % GROUPED_MM_MULTIPLE == 0 for step in steps)
    readable = (by_rows or by_columns) and aligned
    return x if readable else x.clone(memory_format=torch.contiguous_format)


def check_products(how: str, x: Tensor, experts: int, widths: tuple[int, ...]) -> None:
    """Refuse what the products cannot take.

    Args:
        how: `grouped_mm`, `loop` or `dense`.
        x: the rows, for their dtype and device.
        experts: how many matrices a weight has.
        widths: the widths of the products.

    Raises:
        InputError: an unknown name; more than one expert for `dense`; for `grouped_mm` a dtype
            other than bf16, a width that is no multiple of 8, too many experts.
    """
    if how not in ("grouped_mm", "loop", "dense"):
        raise InputError(f"products={how!r} is unknown; use grouped_mm, loop or dense")
    if how == "dense" and experts != 1:
        raise InputError(f"dense products are of one expert, and there are {experts}; use loop")
    if how != "grouped_mm":
        return
    if x.dtype != torch.bfloat16:
        raise InputError(f"grouped_mm needs bfloat16 and got {x.dtype}; use products='loop'")
    if experts > GROUPED_MM_EXPERTS:
        raise InputError(
            f"grouped_mm takes at most {GROUPED_MM_EXPERTS} experts and got {experts}; use "
            "products='loop' (dispatch: stacked)"
        )
    for width in widths:
        if width % GROUPED_MM_MULTIPLE:
            raise InputError(
                f"grouped_mm needs widths that are multiples of {GROUPED_MM_MULTIPLE} "
                f"and got {width}; use products='loop' (dispatch: stacked)"
            )


@functools.cache
def check_device(device: torch.device) -> None:
    """Refuse `grouped_mm` on a CUDA device where torch would loop instead of it.

    Raises:
        DeviceError: torch has no grouped kernel there.
    """
    if torch.cuda.get_device_capability(device)[0] not in GROUPED_MM_MAJORS:
        raise DeviceError(
            f"torch has no grouped_mm kernel on {torch.cuda.get_device_name(device)} and would "
            "loop over the experts; use products='loop'"
        )
