"""Ops that `torch.compile` and fake tensors see from outside only.

`torch.library.custom_op` does the same with more checks at every call; a layer calls several
ops of a few microseconds each, so this registers the body with the dispatcher directly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from gptoss_builder.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")

_library: Any = torch.library.Library("gptoss", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch


def opaque(
    fake: Callable[..., Any], *, name: str = "", mutates: tuple[str, ...] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Turn a function of tensors, numbers and strings into the op `gptoss::<name>`.

    Args:
        fake: returns empty outputs of the right shape and dtype; called with the op's arguments.
        name: of the op, by default the function's.
        mutates: arguments that the body writes to.
    """

    def register(body: Callable[P, T]) -> Callable[P, T]:
        op = name or body.__name__
        _library.define(op + torch.library.infer_schema(body, mutates_args=mutates))
        _library.impl(op, body, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gptoss::{op}", fake, lib=_library)
        return cast(Callable[P, T], getattr(torch.ops.gptoss, op).default)

    return register


def differentiable(
    op: Callable[P, T],
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
) -> None:
    """Give an op its backward (see `torch.library.register_autograd`), which has none itself."""
    name = cast(Any, op).name()

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            results: tuple[Tensor | None, ...] = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return results
        # create_graph=True: without this the ops inside would pass for constants
        inputs = [t for t in (*grads, *ctx.saved_tensors) if t is not None]
        return tuple(None if r is None else _Last.apply(r, name, *inputs) for r in results)  # type: ignore[no-untyped-call]  # torch leaves apply untyped

    torch.library.register_autograd(cast(Any, op), once, setup_context=setup_context, lib=_library)


class _Last(torch.autograd.Function):
    """A gradient that cannot be differentiated again, whatever it depends on."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, op: str, *_: Tensor) -> Tensor:
        ctx.op = op
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        raise InputError(
            f"{ctx.op} has no second derivative; use w1w3 with implementation='reference' for one"
        )
