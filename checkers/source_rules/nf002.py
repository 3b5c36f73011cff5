from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, constants, nodes, origins, resolve, spelled

FLAG = re.compile(
    r"(?i)(^|_)(has|have|is|use|with|can|no)_?(triton|kernel|grouped_mm)|"
    r"(triton|kernel|grouped_mm)_?(is_)?(available|installed|importable|supported|ok)"
)


@partial(
    SourceRule,
    code="NF002",
    title="no flag routes to another implementation",
    why="What runs is decided once, from the spec, and named in the plan. A test of what "
    "happens to be installed decides it again, in silence.",
    bad="if HAS_TRITON:\n    h = w1w3(x)\nelse:\n    h = loop(x)",
    good='if not has_triton():\n    raise MissingTritonError("install triton, or set stacked")\n'
    "h = w1w3(x)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    names, strings = origins(module.tree), constants(module.tree)
    for node in nodes(module.tree):
        if not isinstance(node, ast.If | ast.IfExp):
            continue
        flag = _flag(node.test, names, strings)
        if flag is None:
            continue
        if isinstance(node, ast.If) and (always_leaves(node.body) or always_leaves(node.orelse)):
            continue
        yield SourceProblem(
            node,
            f"{flag} decides here what runs",
            "read the plan instead, and raise where what it names is missing",
        )


def _flag(test: ast.expr, names: Mapping[str, str], strings: Mapping[str, str]) -> str | None:
    for node in ast.walk(test):
        if isinstance(node, ast.Name | ast.Attribute):
            name = (resolve(node, names) or "").split(".")[-1]
            if FLAG.search(name):
                return name
        if isinstance(node, ast.Call):
            finder = (resolve(node.func, names) or "").split(".")[-1] == "find_spec"
            if finder and node.args and spelled(node.args[0], strings) == "triton":
                return 'find_spec("triton")'
    return None
