from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, assignments, constants, nodes, origins, resolve, spelled

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
    reader = _Reader(module.tree)
    for node in nodes(module.tree):
        test = _test(node)
        flag = reader.flag(test) if test is not None else None
        if flag is None:
            continue
        if isinstance(node, ast.If) and (always_leaves(node.body) or always_leaves(node.orelse)):
            continue
        yield SourceProblem(
            node,
            f"{flag} decides here what runs",
            "read the plan instead, and raise where what it names is missing",
        )


def _test(node: ast.AST) -> ast.expr | None:
    """What a node chooses by."""
    if isinstance(node, ast.If | ast.IfExp):
        return node.test
    if isinstance(node, ast.Match):
        return node.subject
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict | ast.List | ast.Tuple):
        return node.slice
    return None


class _Reader:
    """Finds flags in expressions; a name that is given one is a flag as well."""

    def __init__(self, tree: ast.Module) -> None:
        self.names, self.strings = origins(tree), constants(tree)
        self.given: dict[str, str] = {}
        for target, value in assignments(tree):
            flag = self._whole(value)
            if flag is not None:
                self.given[target] = flag

    def flag(self, test: ast.expr) -> str | None:
        """The flag that an expression reads, or None."""
        return next((flag for node in ast.walk(test) if (flag := self._one(node))), None)

    def _whole(self, value: ast.expr) -> str | None:
        """The flag that an expression is, and does not only hand to a call."""
        match value:
            case ast.Compare(left=left):
                return self._whole(left)
            case ast.UnaryOp(operand=operand):
                return self._whole(operand)
            case ast.BoolOp(values=values):
                return next((flag for part in values if (flag := self._whole(part))), None)
            case ast.Call(func=ast.Name(id="bool"), args=[part]):
                return self._whole(part)
            case ast.Call(func=func):
                return self._one(value) or self._one(func)
        return self._one(value)

    def _one(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name | ast.Attribute):
            name = (resolve(node, self.names) or "").split(".")[-1]
            if FLAG.search(name):
                return name
            return self.given.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Call):
            finder = (resolve(node.func, self.names) or "").split(".")[-1] == "find_spec"
            if finder and node.args and spelled(node.args[0], self.strings) == "triton":
                return 'find_spec("triton")'
        return None
