from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import in_package

WAITING = frozenset(
    {"item", "tolist", "bincount", "nonzero", "argwhere", "masked_select", "unique", "cpu"}
)
APART = ("loop", "reference", "stacked")


@partial(
    SourceRule,
    code="KL101",
    title="the hot path never waits for the device",
    why="item, tolist, bincount, nonzero and their like copy a result to the host, which waits "
    "for everything queued so far, in each layer. Read are gptoss_builder/model and "
    "gptoss_builder/kernels alone. The oracle and the functions and files named loop, stacked or "
    "reference stand apart: there a plain loop is the point.",
    bad="def dispatch(counts_E):\n    return counts_E.max().item()   # in gptoss_builder/model/",
    good="def dispatch_loop(counts_E):\n    return counts_E.max().item()",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if not in_package(module, "model", "kernels") or _apart(module.parts[-1]):
        return
    yield from _waits(module.tree)


def _waits(node: ast.AST) -> Iterator[SourceProblem]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        if named and _apart(getattr(child, "name", "")):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            name = child.func.attr
            if name in WAITING:
                yield SourceProblem(
                    child.func,
                    f"{name} makes the host wait for the device",
                    "keep the value on the device: searchsorted for offsets, a sort for order",
                )
        yield from _waits(child)


def _apart(name: str) -> bool:
    return any(word in name.lower() for word in APART)
