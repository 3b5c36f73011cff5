"""Mixed precision, AdamW, gradient clipping and the learning-rate schedule.

Parameters are fp32 and are the masters. In bf16 the products run on a copy of the big matrices,
refreshed once an optimizer step; what a gradient accumulates in is always fp32. Clipping and
skipping happen inside the fused optimizer kernel, so a step neither rewrites the gradients
nor waits for the device.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from gptoss_builder.errors import InputError
from gptoss_builder.spec.schema import OptimizerSpec, Precision

BIG_MATRICES = frozenset({"wqkv", "wo", "w13", "w2", "shared_w13", "shared_w2"})
"""Last part of the name of every parameter that is copied to bf16. Embedding, head, router,
norms and sinks are the same fp32 parameter for the optimizer and for the computation."""

EMBEDDINGS = frozenset({"embedding", "embed", "wte"})
"""Last part of the name of an embedding that is a plain parameter; `nn.Embedding` is known."""


class MixedPrecision:
    """A module to compute with, and the fp32 masters that the optimizer sees.

    In fp32 `module` is `model` itself, unless a `copy` is asked for, which shares every parameter.
    In bf16 it is a second module that shares every small parameter and every buffer with
    `model`, and holds bf16 copies of the big matrices. When
    the backward has summed a copy's gradient, a hook adds it to the fp32 `.grad` of the master
    and frees it, so bf16 gradients of different layers never live together.
    """

    def __init__(self, model: nn.Module, precision: Precision, *, copy: bool = False) -> None:
        """Copy what has to be copied.

        Args:
            model: the fp32 masters.
            precision: of the products.
            copy: make `module` an object of its own in fp32 too, so that it can be compiled
                without compiling `model`.

        Raises:
            InputError: a parameter of `model` is not fp32, or bf16 is asked for and no parameter
                has one of the names of `BIG_MATRICES`, so that nothing would run in bf16.
        """
        for name, parameter in model.named_parameters():
            if parameter.dtype != torch.float32:
                raise InputError(
                    f"parameter {name} is {parameter.dtype}; parameters are the fp32 masters, "
                    "so build the module in fp32 and set training.precision"
                )
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._low = precision == "bf16"
        self.module = self._copy(model) if self._low or copy else model
        self.refresh()

    def refresh(self) -> None:
        """Copy the masters into the bf16 matrices; call it after every optimizer step."""
        if self._copies:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, self._masters)

    def _copy(self, model: nn.Module) -> nn.Module:
        shared: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
        for name, master in model.named_parameters():
            if self._low and name.rpartition(".")[2] in BIG_MATRICES:
                low = nn.Parameter(
                    torch.empty_like(master, dtype=torch.bfloat16),
                    requires_grad=master.requires_grad,
                )
                if master.requires_grad:
                    low.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's
                        _MoveGradient(master)
                    )
                self._masters.append(master)
                self._copies.append(low)
                shared[id(master)] = low
            else:
                shared[id(master)] = master
        if self._low and not self._copies:
            raise InputError(
                "training.precision is bf16, but no parameter of the module is named "
                f"{', '.join(sorted(BIG_MATRICES))}; name its matrices so or set fp32"
            )
        return deepcopy(model, shared)


class _MoveGradient:
    """Hook: add a bf16 gradient to the master's fp32 one and drop it."""

    def __init__(self, master: nn.Parameter) -> None:
        self.master = master

    def __call__(self, low: Tensor) -> None:
        assert low.grad is not None  # the hook runs after it was accumulated
        if self.master.grad is None:
            self.master.grad = low.grad.float()
        else:
            self.master.grad.add_(low.grad)
        low.grad = None


def adamw(model: nn.Module, spec: OptimizerSpec) -> torch.optim.AdamW:
    """Fused AdamW over the fp32 masters, its state allocated at once.

    Matrices decay; vectors (norms, sinks) and embeddings do not, and a tied head is an
    embedding. Allocating the state here makes a run that does not fit fail before its first
    step, and gives every checkpoint the same names.

    Raises:
        InputError: no parameter of `model` asks for a gradient.
    """
    embeddings = {id(module.weight) for module in model.modules() if _is_embedding(module)}
    decay: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        embedding = id(parameter) in embeddings or name.rpartition(".")[2] in EMBEDDINGS
        (rest if embedding or parameter.ndim < 2 else decay).append(parameter)
    if not decay and not rest:
        raise InputError(f"{type(model).__name__} has no parameter that requires a gradient")
    groups = [
        {"params": parameters, "weight_decay": weight_decay}
        for parameters, weight_decay in ((decay, spec.weight_decay), (rest, 0.0))
        if parameters
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)
    for parameter in decay + rest:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """L2 norm over the gradients of all parameters: an fp32 scalar on the device."""
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return torch.nn.utils.get_total_norm(gradients, foreach=True)


def step(
    optimizer: torch.optim.AdamW,
    *,
    lr: float,
    norm: Tensor,
    grad_clip: float,
    skip: Tensor | None,
) -> None:
    """One clipped AdamW step, decided on the device.

    The fused kernel divides gradients by `grad_scale` as it reads them and does nothing where
    `found_inf` is 1: the same two attributes through which torch's own gradient scaler
    speaks to it.

    Args:
        optimizer: made by `adamw`.
        lr: learning rate of this step.
        norm: global gradient norm, fp32 scalar on the device.
        grad_clip: largest norm; 0 is off.
        skip: fp32 scalar on the device, 1 to leave parameters and state as they are; None
            always steps.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
    scaled = optimizer.__dict__  # not declared by torch.optim.AdamW, read by its step()
    scaled["grad_scale"] = (norm / grad_clip).clamp(min=1.0) if grad_clip else None
    scaled["found_inf"] = skip
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def learning_rate(index: int, steps: int, spec: OptimizerSpec) -> float:
    """Learning rate of optimizer step `index`, from 0: linear warm-up, then cosine to the floor.

    The last warm-up step has the peak rate and the last step of all has lr · min_lr_ratio.
    A warm-up as long as the run or longer never leaves the ramp.
    """
    if index < spec.warmup_steps:
        return spec.lr * (index + 1) / spec.warmup_steps
    progress = min(1.0, (index + 1 - spec.warmup_steps) / (steps - spec.warmup_steps))
    floor = spec.lr * spec.min_lr_ratio
    return floor + (spec.lr - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)
