"""Which functions of a step `torch.compile` sees, each as a copy with a code object of its own.

Dynamo keeps what it has compiled at a function's code object, and after eight variants there it
gives up: with an error, or by running the rest uncompiled. All blocks of all models that a process
trains are one code object, and a variant is a size, a mode, a set of frozen parameters. So what is
of other sizes gets another copy, and trainings of the same sizes share what was compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import nn

from gptoss_builder.model.transformer import Block, Transformer
from gptoss_builder.plan.schema import Plan

Function = Callable[..., Any]


def compile_parts(compute: nn.Module, plan: Plan) -> None:
    """Compile what a module runs in a step of `plan`, in place; names in it stay as they are.

    Ours goes block by block: every block of one kind is the same code, compiled once, and without
    graph breaks. Of a user's module it is `hidden`.
    """
    training = plan.spec.training
    assert training is not None  # a step is of a training
    sizes = (plan.spec.model, plan.execution, training.micro_batch, training.context)
    if isinstance(compute, Transformer):
        for part in (*compute.blocks, compute.norm):
            kind = part.attention.kind if isinstance(part, Block) else None
            trained = tuple(parameter.requires_grad for parameter in part.parameters())
            forward = cast(FunctionType, type(part).forward)
            part.forward = MethodType(own_copy(forward, (sizes, kind, trained)), part)
            part.compile(fullgraph=True, dynamic=False)
        return
    hidden = cast(Any, compute).hidden
    if isinstance(hidden, MethodType) and isinstance(hidden.__func__, FunctionType):
        hidden = MethodType(own_copy(hidden.__func__, sizes), hidden.__self__)
    compute.hidden = cast(Any, torch.compile(hidden, dynamic=False))


@functools.lru_cache(maxsize=64)
def compiled(function: FunctionType, sizes: Hashable) -> Function:
    """`function` through `torch.compile`, without graph breaks, for arguments of these sizes."""
    return torch.compile(own_copy(function, sizes), fullgraph=True, dynamic=False)


@functools.lru_cache(maxsize=64)
def own_copy(function: FunctionType, key: Hashable) -> FunctionType:
    """The copy of `function` that belongs to `key`: the same one as long as it is in use."""
    copy = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def fault_of(error: RuntimeError) -> str | None:
    """What the compiler says of a function that it cannot compile; None of any other error."""
    known = sys.modules.get("torch._dynamo.exc")  # there once something was to be compiled
    if known is None or not isinstance(error, known.TorchDynamoException):
        return None
    return " ".join(str(error).partition("\n\n")[0].split())
