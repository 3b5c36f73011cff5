from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.kernel_use import of_kernel
from checkers.rule import Module, SourceProblem, SourceRule
from checkers.source_rules.tr001 import PACKAGES
from checkers.syntax import (
    IMPORTERS,
    calls,
    constants,
    nodes,
    origins,
    resolve,
    sanctioned,
    spelled,
)


@partial(
    SourceRule,
    code="TR002",
    title="Triton is not imported by a string",
    why="An import that is spelled out at run time is an import all the same, and hides from "
    "every other tool.",
    bad='tl = importlib.import_module("triton.language")',
    good="import torch",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if sanctioned(module):
        return
    fix = "write this part in PyTorch; Triton belongs in kernels/w1w3_triton.py alone"
    names, strings = origins(module.tree), constants(module.tree)
    modules = _modules(module.tree)
    for call, called in calls(module):
        origin = called.removeprefix("builtins.")
        # Of an object that is no module, an attribute `triton` is anything: an option, say.
        of_module = origin == "getattr" and _is_module(call.args, modules, names)
        if not (origin in IMPORTERS or of_module):
            continue
        arguments = [*call.args, *(item.value for item in call.keywords)]
        texts = [spelled(argument, strings) for argument in arguments]
        if any(text is not None and _package(text) in PACKAGES for text in texts):
            yield SourceProblem(call, f"{called} imports triton by a string", fix)
    for node in nodes(module.tree):
        if isinstance(node, ast.Subscript) and resolve(node.value, names) == "sys.modules":
            text = spelled(node.slice, strings)
            if text is not None and _package(text) in PACKAGES:
                yield SourceProblem(node, "triton is taken out of sys.modules", fix)


def _modules(tree: ast.Module) -> frozenset[str]:
    """Names that an `import` binds; `from` may bind anything."""
    return frozenset(
        alias.asname or alias.name.split(".")[0]
        for node in nodes(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    )


def _is_module(
    arguments: list[ast.expr], modules: frozenset[str], names: Mapping[str, str]
) -> bool:
    match arguments:
        case [ast.Name(id=name), *_]:
            return name in modules or of_kernel(names.get(name, ""))
        case [ast.Call(func=func), *_]:
            return (resolve(func, names) or "").removeprefix("builtins.") in IMPORTERS
    return False


def _package(text: str) -> str:
    return text.replace(":", ".").split(".")[0]
