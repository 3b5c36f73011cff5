from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import COMPILE, KERNEL, always_leaves, nodes, origins, resolve

KERNEL_ERRORS = frozenset({"KernelError", "LaunchError", "MissingTritonError", "CapError"})
KERNEL_HOMES = ("triton", "gptoss_builder.kernels", "gptoss_builder.plan.launch")
OPS = frozenset({"w1w3", "triton_moe_w1w3_silu"})


@partial(
    SourceRule,
    code="NF001",
    title="no except swallows the kernel",
    why="A kernel that is missing, does not compile or fails must stop the run. An except that "
    "goes on runs something else than the spec says, and the numbers of the run are of that.",
    bad="try:\n    h = w1w3(x, w13)\nexcept RuntimeError:\n    h = reference(x, w13)",
    good="h = w1w3(x, w13)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if module.parts[-3:] == COMPILE:
        return  # It runs no model: a compile that fails is its result.
    names = origins(module.tree)
    for node in nodes(module.tree):
        if isinstance(node, ast.Try | ast.TryStar):
            # In the kernel's own file everything is around the kernel.
            kernel = module.parts[-3:] == KERNEL or _uses_kernel(node.body, names)
            yield from _swallowed(node, names, kernel=kernel)
        elif isinstance(node, ast.With | ast.AsyncWith) and _suppresses(node, names):
            yield SourceProblem(
                node,
                "contextlib.suppress stands around the kernel",
                "let the error through; it says what to set",
            )


def _swallowed(
    node: ast.Try | ast.TryStar, names: Mapping[str, str], *, kernel: bool
) -> Iterator[SourceProblem]:
    for handler in node.handlers:
        if always_leaves(handler.body):
            continue
        origins_caught = list(_caught(handler, names))
        caught = {origin.split(".")[-1] for origin in origins_caught}
        if kernel or caught & KERNEL_ERRORS or any(map(_of_kernel, origins_caught)):
            what = ", ".join(sorted(caught)) or "everything"
            yield SourceProblem(
                handler,
                f"this catches {what} around the kernel and goes on",
                "raise again, or remove the try; to run without the kernel set "
                "model.moe.dispatch in the spec",
            )
    if kernel:
        for inner in node.finalbody:
            if any(isinstance(part, ast.Return) for part in ast.walk(inner)):
                yield SourceProblem(
                    inner, "a return in finally swallows the kernel's error", "return after it"
                )


def _caught(handler: ast.ExceptHandler, names: Mapping[str, str]) -> Iterator[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for kind in types:
        origin = resolve(kind, names) if kind is not None else None
        if origin is not None:
            yield origin


def _suppresses(node: ast.With | ast.AsyncWith, names: Mapping[str, str]) -> bool:
    suppressing = any(
        isinstance(item.context_expr, ast.Call)
        and resolve(item.context_expr.func, names) in ("contextlib.suppress", "suppress")
        for item in node.items
    )
    return suppressing and _uses_kernel(node.body, names)


def _uses_kernel(body: list[ast.stmt], names: Mapping[str, str]) -> bool:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                if any(_of_kernel(alias.name) for alias in node.names):
                    return True
            elif isinstance(node, ast.ImportFrom):
                if _of_kernel(node.module or "") or any(a.name in OPS for a in node.names):
                    return True
            elif isinstance(node, ast.Call):
                origin = resolve(node.func, names) or ""
                named = (arg.value for arg in node.args if isinstance(arg, ast.Constant))
                by_string = any(isinstance(name, str) and _of_kernel(name) for name in named)
                if by_string or _of_kernel(origin) or origin.split(".")[-1] in OPS:
                    return True
    return False


def _of_kernel(origin: str) -> bool:
    return any(origin == home or origin.startswith(f"{home}.") for home in KERNEL_HOMES)
