from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, get_args

from checkers.kernel_use import names_op
from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, assignments, constants, nodes, origins, resolve, spelled
from gptoss_builder.plan.schema import UpProducts
from gptoss_builder.spec.schema import Dispatch

WORD = re.compile(r"[A-Z][A-Z0-9]*(?![a-z])|[A-Z]?[a-z0-9]+")
SWITCHES = frozenset(
    {"has", "have", "is", "use", "using", "with", "can", "no", "enabled", "ok"}
    | {"available", "installed", "importable", "supported"}
)
THINGS = frozenset({"triton", "kernel", "w1w3", "mm"})
BESIDE = frozenset({"grouped", "fused", "moe", "gpu", "cuda", "package"})
MACHINE = frozenset({"is_cuda", "torch.cuda.is_available"})
"""What a device is; a flag where it chooses between the op and something else."""
IMPLEMENTATIONS = frozenset({*get_args(Dispatch), *get_args(UpProducts)})
"""What the spec and the plan call the ways to run W1/W3."""


@partial(
    SourceRule,
    code="NF002",
    title="no flag routes to another implementation",
    why="What runs is decided once, from the spec, and named in the plan. A test of what "
    "happens to be installed decides it again, in silence. A flag is found where one of the ways "
    "from it reaches the W1/W3 op or names a dispatch, and none of them raises.",
    bad="if HAS_TRITON:\n    h = w1w3(x)\nelse:\n    h = loop(x)",
    good='if not has_triton():\n    raise MissingTritonError("install triton, or set stacked")\n'
    "h = w1w3(x)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    reader = _Reader(module.tree)
    for choice in _choices(module.tree):
        flag = reader.flag(choice.test)
        if flag is None or any(always_leaves(list(_statements(way))) for way in choice.ways):
            continue
        everything = [node for way in choice.ways for node in way]
        if flag in MACHINE:
            found = all(choice.ways) and names_op(everything, module.tree)
        else:
            found = names_op(everything, module.tree) or _names_implementation(everything)
        if found:
            yield SourceProblem(
                choice.node,
                f"{flag} decides here what runs",
                "read the plan instead, and raise where what it names is missing",
            )


class _Choice(NamedTuple):
    node: ast.AST
    test: ast.expr
    """What it chooses by."""
    ways: Sequence[Sequence[ast.AST]]
    """What it chooses among; one that is empty goes on."""


def _choices(tree: ast.Module) -> Iterator[_Choice]:
    after = _followers(tree)
    for node in nodes(tree):
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                other = orelse or (after.get(node, []) if _hands_back(body) else [])
                yield _Choice(node, test, (body, other))
            case ast.IfExp(test=test, body=one, orelse=two):
                yield _Choice(node, test, ([one], [two]))
            case ast.Match(subject=subject, cases=cases):
                yield _Choice(node, subject, [case.body for case in cases])
            case ast.Subscript(value=ast.Dict(values=values), slice=key):
                yield _Choice(node, key, [[value] for value in values])
            case ast.Subscript(value=ast.List(elts=values) | ast.Tuple(elts=values), slice=key):
                yield _Choice(node, key, [[value] for value in values])


def _followers(tree: ast.Module) -> dict[ast.AST, list[ast.stmt]]:
    """What comes after each `if`, in its own block."""
    found: dict[ast.AST, list[ast.stmt]] = {}
    for node in nodes(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                for index, statement in enumerate(block):
                    if isinstance(statement, ast.If):
                        found[statement] = block[index + 1 :]
    return found


def _hands_back(body: list[ast.stmt]) -> bool:
    """Whether statements end by giving a result, so that what follows is the other way."""
    last = body[-1]
    return (
        isinstance(last, ast.Return)
        and last.value is not None
        and not isinstance(last.value, ast.Constant)
    )


def _statements(way: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    return (node for node in way if isinstance(node, ast.stmt))


def _names_implementation(way: Iterable[ast.AST]) -> bool:
    """Whether the way assigns, returns or passes by keyword what the spec calls an implementation.

    A string among other arguments is anything, a message for one.
    """
    waiting = list(way)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and node.value in IMPLEMENTATIONS:
            return True
        waiting += node.keywords if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return False


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
            origin = resolve(node, self.names) or ""
            last = node.attr if isinstance(node, ast.Attribute) else origin.split(".")[-1]
            if not MACHINE.isdisjoint((origin, last)):
                return origin if origin in MACHINE else last
            if _is_flag(last):
                return last
            return self.given.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Call):
            finder = (resolve(node.func, self.names) or "").split(".")[-1] == "find_spec"
            if finder and node.args and spelled(node.args[0], self.strings) == "triton":
                return 'find_spec("triton")'
        return None


def _is_flag(name: str) -> bool:
    """Whether every word of a name speaks of the kernel or of a switch: use_kernel_bias does not.

    The words alone prove nothing; what the flag chooses between does.
    """
    words = {word.lower() for word in WORD.findall(name)}
    said = SWITCHES | THINGS | BESIDE
    return words <= said and not words.isdisjoint(SWITCHES) and not words.isdisjoint(THINGS)
