from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import in_package, nodes, origins, resolve
from gptoss_builder.spec.schema import HARD_CAP

NAME = "HARD_CAP"


@partial(
    SourceRule,
    code="HC101",
    title="the hard cap stays what it is",
    why="d_model and d_ff of at most 8192 is a promise of the kernel: its index arithmetic, its "
    "tests and its launch tables end there. Raising gptoss_builder's constant, there or from "
    "outside, raises none of them. A HARD_CAP of your own is yours.",
    bad="from gptoss_builder.spec import schema\n\nschema.HARD_CAP = 16384",
    good="from gptoss_builder.spec.schema import HARD_CAP",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    names = origins(module.tree)
    home = in_package(module, "spec", "plan", "kernels")
    for node in nodes(module.tree):
        for target, value in _assigned(node):
            origin = resolve(target, names) or ""
            if not _is_cap(origin, at_home=home):
                continue
            if not (isinstance(value, ast.Constant) and value.value == HARD_CAP):
                yield SourceProblem(
                    node,
                    f"HARD_CAP becomes {ast.unparse(value) if value else 'another value'}",
                    f"leave it at {HARD_CAP}",
                )


def _is_cap(origin: str, *, at_home: bool) -> bool:
    package, _, name = origin.rpartition(".")
    return name == NAME and (package.startswith("gptoss_builder.") or (at_home and not package))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield target, value
        case ast.AnnAssign(target=target, value=value):
            yield target, value
        case ast.AugAssign(target=target):
            yield target, None
        case ast.Call(
            func=ast.Name(id="setattr") | ast.Attribute(attr="setattr"),
            args=[holder, ast.Constant(value=str(name)), value],
        ):
            yield ast.Attribute(holder, name), value
