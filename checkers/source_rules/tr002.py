from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.source_rules.tr001 import PACKAGES
from checkers.syntax import calls, constants, nodes, origins, resolve, sanctioned, spelled

IMPORTERS = frozenset(
    {
        "__import__",
        "importlib.__import__",
        "importlib.import_module",
        "pkgutil.resolve_name",
        "pytest.importorskip",
        "runpy.run_module",
        "sys.modules.get",
        "getattr",
    }
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
    strings = constants(module.tree)
    for call, origin in calls(module):
        if origin.removeprefix("builtins.") not in IMPORTERS:
            continue
        arguments = [*call.args, *(item.value for item in call.keywords)]
        texts = [spelled(argument, strings) for argument in arguments]
        if any(text is not None and _package(text) in PACKAGES for text in texts):
            yield SourceProblem(call, f"{origin} imports triton by a string", fix)
    names = origins(module.tree)
    for node in nodes(module.tree):
        if isinstance(node, ast.Subscript) and resolve(node.value, names) == "sys.modules":
            text = spelled(node.slice, strings)
            if text is not None and _package(text) in PACKAGES:
                yield SourceProblem(node, "triton is taken out of sys.modules", fix)


def _package(text: str) -> str:
    return text.replace(":", ".").split(".")[0]
