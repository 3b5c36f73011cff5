"""What a training step of the real model allocates, followed storage by storage.

The model, the loss and the optimizer run under fake tensors on a CPU: shapes and lifetimes are
real, values and bytes are not. A dispatch mode sees every operator, finds storages that are
new, and learns by weak reference when one dies. The opaque operators of `kernels` run their
bodies in place, so that what they allocate inside counts too.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gptoss_builder.kernels import w1w3
from gptoss_builder.kernels.elementwise import PLAIN
from gptoss_builder.kernels.experts import BODIES
from gptoss_builder.model.cache import KVCache
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train import loss, optim
from gptoss_builder.train import step as train_step
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.step import PendingNumbers, Stepper

BLOCK = 512
"""Bytes that the CUDA allocator rounds every request up to."""


class LiveStorages(TorchDispatchMode):
    """Bytes alive now and at most, in all and by the moment that `moment` names."""

    def __init__(self, *, detail: bool = False) -> None:
        super().__init__()
        self.live = 0
        self.moment = ""
        self.peaks: Counter[str] = Counter()
        self.detail = detail
        self.at_peak: dict[str, Counter[str]] = {}
        self._sizes: dict[int, tuple[int, str]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name
        body = BODIES.get(name)
        if body is not None:
            with self:
                return body(*args, **(kwargs or {}))
        if name in PLAIN and not args[-1]:  # not compiled
            with self:
                return PLAIN[name](*args[:-1])
        result = func(*args, **(kwargs or {}))
        self.hold(result, name, peak=not _accumulates_out_of_place(func, args))
        return result

    def hold(self, tensors: Any, name: str, *, peak: bool = True) -> None:
        """Count storages not seen before, until they die."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            key = id(storage)
            if key in self._sizes:
                continue
            size = -(-storage.nbytes() // BLOCK) * BLOCK
            self._sizes[key] = (size, f"{name} {tuple(tensor.shape)} {tensor.dtype}")
            weakref.finalize(storage, self._drop, key)
            self.live += size
        if peak and self.live > self.peaks[self.moment]:
            self.peaks[self.moment] = self.live
            if self.detail:
                self.at_peak[self.moment] = self.items()

    def items(self) -> Counter[str]:
        """Bytes alive by operator and shape."""
        total: Counter[str] = Counter()
        for size, what in self._sizes.values():
            total[what] += size
        return total

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key)[0]


def _accumulates_out_of_place(func: Any, args: tuple[Any, ...]) -> bool:
    # Under a dispatch mode autograd adds gradients out of place; without one it adds in place.
    return (
        func is torch.ops.aten.add.Tensor
        and torch._C._current_graph_task_id() != -1
        and not torch.is_grad_enabled()
        and isinstance(args[1], Tensor)
        and args[0].shape == args[1].shape
        and args[0].dtype == args[1].dtype
    )


class _FakeKernel:
    """The Triton kernel's outputs without the kernel."""

    @staticmethod
    def launch_w1w3(
        x_TD: Tensor,
        w13_EFD: Tensor,
        offsets_E: Tensor,
        rows_R: Tensor | None,
        launch: Any,
        *,
        write_h: bool,
        write_gate_up: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = x_TD.shape[0] if rows_R is None else rows_R.shape[0]
        double = w13_EFD.shape[1]
        return (
            x_TD.new_empty(rows, double // 2) if write_h else x_TD.new_empty(0),
            x_TD.new_empty(rows, double) if write_gate_up else x_TD.new_empty(0),
        )


@contextmanager
def fake_kernels() -> Iterator[None]:
    """Let plans for a GPU run under fake tensors on a CPU."""
    with mock.patch.object(w1w3, "triton_module", return_value=_FakeKernel):
        yield


def measure_training(plan: Plan, live: LiveStorages | None = None) -> LiveStorages:
    """Peaks of one optimizer step of the trainer's own `Stepper`, by moment."""
    training = plan.spec.training
    assert training is not None
    live = live or LiveStorages()
    moments = _named_moments(live)
    with fake_kernels(), moments, FakeTensorMode(allow_non_fake_inputs=True), live:
        stepper = Stepper(plan, Transformer(plan), NanGuard(training.nan_guard))
        shape = (training.accumulate, training.micro_batch, training.context)
        tokens_ABT, labels_ABT = torch.zeros((2, *shape), dtype=torch.int64)
        live.moment = "forward"
        # the second micro-batch is like all that follow
        stepper.run(StepBatch(tokens_ABT[:2], labels_ABT[:2], labels_ABT.numel()), 0)
    return live


@contextmanager
def _named_moments(live: LiveStorages) -> Iterator[None]:
    """Name the moments of a step as its functions are entered and left."""

    def entering(module: Any, name: str, before: str, after: str) -> Any:
        inner = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            live.moment = before
            result = inner(*args, **kwargs)
            live.moment = after
            return result

        return mock.patch.object(module, name, wrapped)

    with (
        entering(train_step, "linear_cross_entropy", "loss", "backward"),
        entering(Stepper, "_backward", "forward", "between"),
        entering(optim, "gradient_norm", "optimizer", "optimizer"),
        mock.patch.object(PendingNumbers, "__init__", return_value=None),
        mock.patch.object(loss, "_add_product", lambda total_VD, _a, _b: total_VD.add_(0)),
    ):
        yield


def measure_serving(plan: Plan, position: int, tokens: int) -> LiveStorages:
    """Peak of one forward pass over `tokens` new tokens that join a cache with `position`."""
    inference = plan.spec.inference
    assert inference is not None
    live = LiveStorages()
    bf16 = plan.execution.precision == "bf16"
    precision = torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()
    with (
        fake_kernels(),
        FakeTensorMode(allow_non_fake_inputs=True),
        live,
        torch.no_grad(),
        precision,
    ):
        model = Transformer(plan)
        prompt_BT = torch.zeros((inference.batch, inference.context), dtype=torch.int64)
        cache = KVCache(plan, batch=inference.batch, context=inference.context, device="cpu")
        cache.advance(position)
        live.moment = "forward"
        x_BTD, _ = model.hidden(prompt_BT[:, position : position + tokens], cache=cache)
        model.logits(x_BTD[:, -1])
    return live
