from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.source_rules.tr001 import PACKAGES
from checkers.syntax import nodes, origins, resolve, sanctioned

WRAPPERS = frozenset({"torch.library.triton_op", "torch.library.wrap_triton"})


@partial(
    SourceRule,
    code="TR003",
    title="only the W1/W3 kernel is jitted",
    why="A function that Triton compiles is a kernel written in source. There is one, and a "
    "second would be neither tested nor measured by anything here.",
    bad="import triton\n\n@triton.jit\ndef norm_kernel(x_ptr):\n    ...",
    good="def norm(x_TD):\n    return x_TD * (x_TD.square().mean(-1, keepdim=True)).rsqrt()",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if sanctioned(module):
        return
    names = origins(module.tree)
    starred = any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in PACKAGES
        and any(alias.name == "*" for alias in node.names)
        for node in nodes(module.tree)
    )
    for node in nodes(module.tree):
        used: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            # A decorator with arguments is a call, and met as one.
            used = [item for item in node.decorator_list if not isinstance(item, ast.Call)]
        elif isinstance(node, ast.Call):
            used = [node.func]
        for expression in used:
            origin = resolve(expression, names)
            if origin is not None and _jits(origin, starred=starred):
                yield SourceProblem(
                    expression,
                    f"{origin} makes a kernel here",
                    "write it in PyTorch, which torch.compile may fuse",
                )


def _jits(origin: str, *, starred: bool) -> bool:
    parts = origin.split(".")
    # Triton's name may come through another module: torch's, or our own kernel's file.
    jits = parts[-1] in ("jit", "autotune", "heuristics") and not PACKAGES.isdisjoint(parts)
    return origin in WRAPPERS or jits or (starred and origin == "jit")
