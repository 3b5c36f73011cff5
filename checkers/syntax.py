"""What source rules ask of a syntax tree: what a name stands for, what a string says.

Resolution is by text alone: imports and plain assignments are followed, anything that needs
running is not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from checkers.rule import Module

KERNEL = ("gptoss_builder", "kernels", "w1w3_triton.py")
"""The one kernel."""
COMPILE = ("gptoss_builder", "kernels", "compile.py")
"""Its compile for a card that is not there."""
SANCTIONED = (KERNEL, COMPILE)
"""The only files that may import Triton."""


IMPORTERS = frozenset(
    {
        "__import__",
        "importlib.__import__",
        "importlib.import_module",
        "pkgutil.resolve_name",
        "pytest.importorskip",
        "runpy.run_module",
        "sys.modules.get",
    }
)
"""Functions that import what a string names."""


def sanctioned(module: Module) -> bool:
    """Whether the file is one of the two that may use Triton."""
    return module.parts[-3:] in SANCTIONED


def in_package(module: Module, *names: str) -> bool:
    """Whether the file lies in `gptoss_builder/<name>/` for one of the names."""
    parts = module.parts[:-1]
    return any(
        parts[index : index + 2] == ("gptoss_builder", name)
        for index in range(len(parts) - 1)
        for name in names
    )


@lru_cache(maxsize=4)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of the tree; one walk serves all rules."""
    return tuple(ast.walk(tree))


@lru_cache(maxsize=4)
def origins(tree: ast.Module) -> Mapping[str, str]:
    """What each local name stands for: `{"tl": "triton.language"}`.

    Imports anywhere in the file count, and so do assignments of one name to another
    (`jit = triton.jit`).
    """
    found: dict[str, str] = {}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                found[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = f"{package}.{alias.name}"
    for target, value in assignments(tree):
        origin = resolve(value, found)
        if origin is not None and target not in found:
            found[target] = origin
    return found


@lru_cache(maxsize=4)
def bound(tree: ast.Module) -> frozenset[str]:
    """Names that the file itself gives a meaning: functions, classes, arguments, variables."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def ours(origin: str, tree: ast.Module) -> bool:
    """Whether a dotted origin is this package's: imported from it, or a name from nowhere else."""
    return origin.startswith("gptoss_builder.") or ("." not in origin and origin not in bound(tree))


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Every assignment to one name, with its value."""
    for node in nodes(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target: ast.expr = node.targets[0]
            value: ast.expr | None = node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and value is not None:
            yield target.id, value


def resolve(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """The dotted origin of a name or attribute: `triton.jit`; None for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = resolve(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return None


@lru_cache(maxsize=4)
def constants(tree: ast.Module) -> Mapping[str, str]:
    """Names that are assigned one constant string and nothing else."""
    seen: dict[str, str | None] = {}
    for target, value in assignments(tree):
        text = spelled(value, {})
        seen[target] = text if target not in seen else None
    return {name: text for name, text in seen.items() if text is not None}


def spelled(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """The string that an expression spells out, put together where it is in pieces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined("", (left, right), names)
        case ast.JoinedStr(values=parts):
            return _joined("", parts, names)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
            args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
        ):
            return _joined(between, parts, names)
    return _formatted(node, names)


def _formatted(node: ast.AST, names: Mapping[str, str]) -> str | None:
    match node:
        case ast.BinOp(left=ast.Constant(value=str(form)), op=ast.Mod(), right=value):
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            return _put_into(form.split("%s"), parts, names)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(form)), attr="format"), args=parts
        ):
            return _put_into(form.split("{}"), parts, names)
    return None


def _put_into(pieces: list[str], parts: Sequence[ast.AST], names: Mapping[str, str]) -> str | None:
    """A format string with its places filled."""
    if len(parts) != len(pieces) - 1:
        return None
    between: list[ast.AST] = [ast.Constant(pieces[0])]
    for part, piece in zip(parts, pieces[1:], strict=True):
        between += [part, ast.Constant(piece)]
    return _joined("", between, names)


def _joined(between: str, parts: Iterable[ast.AST], names: Mapping[str, str]) -> str | None:
    pieces = [
        spelled(part.value if isinstance(part, ast.FormattedValue) else part, names)
        for part in parts
    ]
    known = [piece for piece in pieces if piece is not None]
    return between.join(known) if len(known) == len(pieces) else None


def calls(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Every call of something that has a name, with the name's origin."""
    names = origins(module.tree)
    for node in nodes(module.tree):
        if isinstance(node, ast.Call):
            origin = resolve(node.func, names)
            if origin is not None:
                yield node, origin


def reached(entries: Iterable[str], functions: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    """The functions among `functions` that `entries` call, through others too, and they."""
    found = set(entries)
    waiting = list(found)
    while waiting:
        for node in ast.walk(functions[waiting.pop()]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                if name in functions and name not in found:
                    found.add(name)
                    waiting.append(name)
    return frozenset(found)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, or None."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def always_leaves(body: list[ast.stmt]) -> bool:
    """Whether every way through the statements raises or ends the process."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    if isinstance(last, ast.If):
        return always_leaves(last.body) and always_leaves(last.orelse)
    if isinstance(last, ast.With | ast.AsyncWith):
        return always_leaves(last.body)
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return resolve(last.value.func, {}) in ("sys.exit", "os._exit", "exit", "quit")
    return False
