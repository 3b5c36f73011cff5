from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import calls, keyword, origins, resolve

FUNCTIONS = frozenset(
    {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
)
PARTIAL = frozenset({"functools.partial", "partial"})


@partial(
    SourceRule,
    code="CK101",
    title="gradient checkpointing says use_reentrant=False",
    why="The reentrant variant loses gradients where no input needs one (a frozen embedding), "
    "does not see detached statistics or tuple outputs, and is torch's default in some versions.",
    bad="from torch.utils.checkpoint import checkpoint\n\ny = checkpoint(block, x)",
    good="from torch.utils.checkpoint import checkpoint\n\n"
    "y = checkpoint(block, x, use_reentrant=False)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    names = origins(module.tree)
    for call, origin in calls(module):
        wrapped = origin in PARTIAL and call.args and resolve(call.args[0], names) in FUNCTIONS
        if origin not in FUNCTIONS and not wrapped:
            continue
        value = keyword(call, "use_reentrant")
        if isinstance(value, ast.Constant) and value.value is False:
            continue
        said = "is not said" if value is None else f"is {ast.unparse(value)}"
        yield SourceProblem(call, f"use_reentrant {said}", "pass use_reentrant=False, literally")
