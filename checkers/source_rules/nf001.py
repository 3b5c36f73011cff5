from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.kernel_use import leaves_by_the_way, of_kernel, suppressed_by, uses_kernel
from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import COMPILE, KERNEL, always_leaves, nodes, origins, ours, resolve

KERNEL_ERRORS = frozenset({"KernelError", "LaunchError", "MissingTritonError", "CapError"})
FOREIGN = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit"})
"""What a person or the interpreter raises, and no kernel does."""


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
    tree = module.tree
    for node in nodes(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            # In the kernel's own file everything is around the kernel.
            kernel = module.parts[-3:] == KERNEL or uses_kernel(node.body, tree)
            yield from _swallowed(node, tree, kernel=kernel)
        elif isinstance(node, ast.With | ast.AsyncWith):
            manager = suppressed_by(node, tree)
            if manager is not None and uses_kernel(node.body, tree):
                yield SourceProblem(
                    node,
                    f"{manager} stands around the kernel",
                    "let the error through; it says what to set",
                )


def _swallowed(
    node: ast.Try | ast.TryStar, tree: ast.Module, *, kernel: bool
) -> Iterator[SourceProblem]:
    names = origins(tree)
    for handler in node.handlers:
        if always_leaves(handler.body):
            continue
        origins_caught = list(_caught(handler, names))
        caught = {origin.split(".")[-1] for origin in origins_caught}
        if handler.type is not None and caught and caught <= FOREIGN:
            continue
        if kernel or any(_of_kernel(origin, tree) for origin in origins_caught):
            what = ", ".join(sorted(caught)) or "everything"
            yield SourceProblem(
                handler,
                f"this catches {what} around the kernel and goes on",
                "raise again, or remove the try; to run without the kernel set "
                "model.moe.dispatch in the spec",
            )
    way_out = leaves_by_the_way(node.finalbody) if kernel else None
    if way_out is not None:
        word = type(way_out).__name__.lower()
        yield SourceProblem(
            way_out, f"a {word} in finally swallows the kernel's error", f"{word} after it"
        )


def _of_kernel(origin: str, tree: ast.Module) -> bool:
    """Whether an error is the kernel's, and not one of the user's that has its name."""
    name = origin.rsplit(".", maxsplit=1)[-1]
    return of_kernel(origin) or (name in KERNEL_ERRORS and ours(origin, tree))


def _caught(handler: ast.ExceptHandler, names: Mapping[str, str]) -> Iterator[str]:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    for kind in types:
        origin = resolve(kind, names) if kind is not None else None
        if origin is not None:
            yield origin
