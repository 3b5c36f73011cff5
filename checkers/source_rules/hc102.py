from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, reached

ENTRIES: Mapping[tuple[str, ...], str] = {
    ("gptoss_builder", "kernels", "w1w3.py"): "w1w3",
    ("gptoss_builder", "plan", "resolve.py"): "resolve",
}
"""Functions that must refuse a width above the cap, whoever calls them."""


@partial(
    SourceRule,
    code="HC102",
    title="resolve and the op refuse widths above the cap themselves",
    why="The schema's limit is passed by a spec that was built without it, and by a caller of "
    "the op who has no spec at all.",
    bad="def w1w3(x_TD, w13_EFD):\n    return launch(x_TD, w13_EFD)   # in kernels/w1w3.py",
    good="def w1w3(x_TD, w13_EFD):\n    if x_TD.shape[1] > HARD_CAP:\n"
    '        raise CapError("use a narrower model")\n    return launch(x_TD, w13_EFD)',
)
def rule(module: Module) -> Iterator[SourceProblem]:
    entry = ENTRIES.get(module.parts[-3:])
    if entry is None:
        return
    functions = {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    if entry not in functions:
        yield SourceProblem(module.tree, f"there is no function {entry} here", "restore it")
    elif not any(_refuses(functions[name]) for name in reached([entry], functions)):
        yield SourceProblem(
            functions[entry],
            f"{entry} does not compare its widths with HARD_CAP and raise",
            "raise CapError above HARD_CAP, here or in a function that it calls",
        )


def _refuses(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.If) and always_leaves(node.body) and _mentions_cap(node.test)
        for node in ast.walk(function)
    )


def _mentions_cap(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "HARD_CAP" for part in ast.walk(test))
