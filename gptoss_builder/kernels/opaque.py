"""Ops that `torch.compile` and fake tensors see from outside only.

`torch.library.custom_op` does the same with more checks at every call; a layer calls several
ops of a few microseconds each, so this registers the body with the dispatcher directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch

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
    """Give an op its backward (see `torch.library.register_autograd`)."""
    torch.library.register_autograd(
        cast(Any, op), backward, setup_context=setup_context, lib=_library
    )
