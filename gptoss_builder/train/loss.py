"""Cross-entropy fused with the vocabulary projection, a chunk of tokens at a time.

The `[tokens, vocab]` logits never exist: a chunk's logits, its loss and its part of both
gradients are computed together and freed before the next chunk. Gradients are therefore made
in the forward pass; the backward only scales them. A chunk's logits are read twice, once for
their log-sum-exp and once to write their gradient over them.

Dimensions: T tokens, C tokens of one chunk, D model width, V vocabulary, N blocks of B logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gptoss_builder.plan.sizes import loss_block
from gptoss_builder.train import compiling

IGNORE = -100
"""Label of a position that has no target."""


def linear_cross_entropy(
    x_TD: Tensor,
    weight_VD: Tensor,
    label_T: Tensor,
    *,
    chunk: int,
    scale: Tensor | None = None,
    z_loss: float = 0.0,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sum over valid labels of scale · (−log softmax(x Wᵀ)[label] + z_loss · lse(x Wᵀ)²).

    Sums, not means: micro-batches with unequal numbers of valid labels add up, and `scale` is
    one over the count of the whole step. The z term is PaLM's (Chowdhery et al. 2022).

    Args:
        x_TD: hidden states, bf16 or fp32; the products run in this type.
        weight_VD: output projection; cast to the type of `x_TD` once, its gradient is summed
            over chunks in fp32.
        label_T: int64; `IGNORE` contributes nothing to the sums or to the gradients.
        chunk: tokens whose logits exist at one time.
        scale: fp32 scalar on the device, applied before gradients are rounded to the type of
            `x_TD`; 1 if None.
        z_loss: coefficient of the squared log-partition.
        compiled: run the elementwise work of a chunk through torch.compile.

    Returns:
        The differentiable objective, and the plain sum of the cross-entropy (no scale, no z
        term, no gradient); both fp32 scalars on the device. Nothing waits for the device. The
        backward works once: it scales the stored gradients in place.
    """
    if scale is None:
        scale = torch.ones((), dtype=torch.float32, device=x_TD.device)
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _LinearCrossEntropy.apply)
    objective, nll = apply(x_TD, weight_VD, label_T, scale, chunk, z_loss, compiled)
    return objective, nll


def cross_entropy_sum(
    x_TD: Tensor, weight_VD: Tensor, label_T: Tensor, *, chunk: int
) -> tuple[Tensor, Tensor]:
    """Sum of the cross-entropy and count of valid labels, without gradients, in chunks.

    Returns:
        An fp32 and an int64 scalar on the device.
    """
    total = torch.zeros((), dtype=torch.float32, device=x_TD.device)
    with torch.no_grad():
        weight_VD = weight_VD.to(x_TD.dtype)
        for x_CD, label_C in zip(
            torch.split(x_TD, chunk), torch.split(label_T, chunk), strict=True
        ):
            logits_CV = (x_CD @ weight_VD.T).float()
            total += torch.nn.functional.cross_entropy(
                logits_CV, label_C, ignore_index=IGNORE, reduction="sum"
            )
    return total, (label_T != IGNORE).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight_VD: Tensor,
        label_T: Tensor,
        scale: Tensor,
        chunk: int,
        z_loss: float,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        w_VD = weight_VD.to(x_TD.dtype)
        dx_TD = torch.empty_like(x_TD) if needs_dx else None
        dw_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_dw else None
        objective = torch.zeros((), dtype=torch.float32, device=x_TD.device)
        nll = torch.zeros_like(objective)
        for start in range(0, x_TD.shape[0], chunk):
            x_CD = x_TD[start : start + chunk]
            dlogits_CV = x_CD @ w_VD.T  # the logits, until their gradient is written over them
            label_C = label_T[start : start + chunk]
            part, part_nll = _differentiate(dlogits_CV, label_C, scale, z_loss, compiled)
            objective += part
            nll += part_nll
            if dx_TD is not None:
                torch.mm(dlogits_CV, w_VD, out=dx_TD[start : start + chunk])
            if dw_VD is not None:
                _add_product(dw_VD, dlogits_CV.T, x_CD)
            del dlogits_CV
        ctx.save_for_backward(dx_TD, dw_VD)
        ctx.weight_dtype = weight_VD.dtype
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _grad_nll: Tensor) -> tuple[Tensor | None, ...]:
        dx_TD, dw_VD = ctx.saved_tensors
        dx = dx_TD.mul_(grad) if dx_TD is not None else None
        dw = dw_VD.mul_(grad).to(ctx.weight_dtype) if dw_VD is not None else None
        return dx, dw, None, None, None, None, None


def _add_product(total_VD: Tensor, a_VC: Tensor, b_CD: Tensor) -> None:
    """`total += a @ b` with an fp32 total, also for bf16 factors."""
    if a_VC.dtype == torch.float32:
        total_VD.addmm_(a_VC, b_CD)
    elif a_VC.is_cuda:
        torch.addmm(total_VD, a_VC, b_CD, out_dtype=torch.float32, out=total_VD)
    else:  # the CPU has no product with an output wider than its factors
        total_VD.add_(a_VC @ b_CD)


def _differentiate(
    logits_CV: Tensor, label_C: Tensor, scale: Tensor, z_loss: float, compiled: bool
) -> tuple[Tensor, Tensor]:
    """Write d objective / d logits of a chunk over its logits; softmax in fp32.

    Returns:
        Objective and cross-entropy.
    """
    statistics, write_softmax = _statistics, _write_softmax
    if compiled:
        sizes = (logits_CV.shape, logits_CV.dtype, z_loss)
        statistics = compiling.compiled(statistics, sizes)
        write_softmax = compiling.compiled(write_softmax, sizes)
    objective, nll, lse_C1, slope_C1, index_C1, dlabel_C1 = statistics(
        logits_CV, label_C, scale, z_loss
    )
    write_softmax(logits_CV, lse_C1, slope_C1)
    logits_CV.scatter_(1, index_C1, dlabel_C1)
    return objective, nll


def _statistics(
    logits_CV: Tensor, label_C: Tensor, scale: Tensor, z_loss: float
) -> tuple[Tensor, ...]:
    """Whatever has one number a row or less.

    Returns:
        Objective; cross-entropy; log-sum-exp of each row and d objective / d of it, fp32; the
        label, or 0 where there is none, and d objective / d of its logit.
    """
    valid_C = label_C != IGNORE
    index_C1 = torch.where(valid_C, label_C, 0)[:, None]
    lse_C1 = _log_sum_exp(logits_CV)
    logp_C1 = logits_CV.gather(1, index_C1).float() - lse_C1
    nll = torch.where(valid_C, -logp_C1[:, 0], 0.0).sum()
    objective = nll
    scale_C1 = torch.where(valid_C, scale, 0.0)[:, None]
    slope_C1 = scale_C1
    if z_loss:
        objective = nll + z_loss * torch.where(valid_C, lse_C1[:, 0], 0.0).square().sum()
        slope_C1 = scale_C1 * (1 + 2 * z_loss * lse_C1)
    # p − 1 is formed in fp32: subtracting 1 from an already rounded p would lose most of its bits
    # where p is near 1.
    dlabel_C1 = (logp_C1.exp() * slope_C1 - scale_C1).to(logits_CV.dtype)
    return objective * scale, nll, lse_C1, slope_C1, index_C1, dlabel_C1


def _log_sum_exp(logits_CV: Tensor) -> Tensor:
    """Log-sum-exp of each row in fp32, by blocks: `torch.compile` reads the logits once.

    Of whole rows it makes an online softmax, which an H200 does at a third of its bandwidth.
    """
    tokens, vocab = logits_CV.shape
    wide_CNB = _wide_copy(logits_CV).view(tokens, -1, loss_block(vocab))
    # a block of −inf must not make a NaN of −inf − (−inf)
    max_CN1 = wide_CNB.amax(dim=2, keepdim=True).clamp_(min=torch.finfo(torch.float32).min)
    sum_CN1 = wide_CNB.sub_(max_CN1).exp_().sum(dim=2, keepdim=True)
    del wide_CNB
    max_C11 = max_CN1.amax(dim=1, keepdim=True)
    sum_C11 = (max_CN1 - max_C11).exp_().mul_(sum_CN1).sum(dim=1, keepdim=True)
    return (sum_C11.log_() + max_C11).squeeze(1)


def _write_softmax(logits_CV: Tensor, lse_C1: Tensor, slope_C1: Tensor) -> None:
    """Write slope · softmax over the logits."""
    logits_CV.copy_(_wide_copy(logits_CV).sub_(lse_C1).exp_().mul_(slope_C1))


def _wide_copy(logits_CV: Tensor) -> Tensor:
    return logits_CV.to(torch.float32, copy=True)
