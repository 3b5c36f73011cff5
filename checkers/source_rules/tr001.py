from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import nodes, sanctioned

PACKAGES = frozenset({"triton", "triton_kernels"})


@partial(
    SourceRule,
    code="TR001",
    title="Triton is imported only by the W1/W3 kernel and its compile",
    why="One kernel, for the experts' W1 and W3, is what the project tests, measures and "
    "promises. Everything else is plain PyTorch, which runs and can be read anywhere.",
    bad="import triton.language as tl",
    good="import torch",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if sanctioned(module):
        return
    for node in nodes(module.tree):
        for name in _imported(node):
            yield SourceProblem(
                node,
                f"{name} is imported here",
                "write this part in PyTorch; Triton belongs in kernels/w1w3_triton.py alone",
            )


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] in PACKAGES:
                yield alias.name
    elif isinstance(node, ast.ImportFrom):
        if not node.level and (node.module or "").split(".")[0] in PACKAGES:
            yield node.module or ""
        elif any(alias.name in PACKAGES for alias in node.names):
            # Handed on by another module: torch and our own kernel file both hold it.
            yield f"triton, through {node.module or 'a package'},"
