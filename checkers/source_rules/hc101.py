from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import nodes, origins, resolve
from gptoss_builder.spec.schema import HARD_CAP


@partial(
    SourceRule,
    code="HC101",
    title="the hard cap stays what it is",
    why="d_model and d_ff of at most 8192 is a promise of the kernel: its index arithmetic, its "
    "tests and its launch tables end there. Raising the constant raises none of them.",
    bad="from gptoss_builder.spec import schema\n\nschema.HARD_CAP = 16384",
    good="from gptoss_builder.spec.schema import HARD_CAP",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    names = origins(module.tree)
    for node in nodes(module.tree):
        for target, value in _assigned(node):
            if (resolve(target, names) or "").split(".")[-1] != "HARD_CAP":
                continue
            if not (isinstance(value, ast.Constant) and value.value == HARD_CAP):
                yield SourceProblem(
                    node,
                    f"HARD_CAP becomes {ast.unparse(value) if value else 'another value'}",
                    f"leave it at {HARD_CAP}",
                )


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        yield node.target, node.value if isinstance(node, ast.AnnAssign) else None
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "setattr"
        and len(node.args) == 3
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value == "HARD_CAP"
    ):
        yield ast.Name("HARD_CAP"), node.args[2]
