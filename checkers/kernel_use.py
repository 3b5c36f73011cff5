"""Where a Python file reaches the kernel, and what there lets an error disappear."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from checkers.syntax import IMPORTERS, always_leaves, nodes, origins, ours, resolve

KERNEL_HOMES = ("triton", "gptoss_builder.kernels", "gptoss_builder.plan.launch")
OP_HOMES = tuple(f"gptoss_builder.kernels.{name}" for name in ("w1w3", "w1w3_triton", "experts"))
"""What of it runs W1 and W3."""
OP = "w1w3"
"""The op's name; an attribute or function of that name that is the user's own is not it."""
_MANAGERS = frozenset({"contextlib.contextmanager", "contextlib.asynccontextmanager"})


def of_kernel(origin: str) -> bool:
    """Whether a dotted origin is the kernel's package, its launch, Triton, or in one of them."""
    return _lies_in(origin, KERNEL_HOMES)


def _lies_in(origin: str, homes: Iterable[str]) -> bool:
    return any(origin == home or origin.startswith(f"{home}.") for home in homes)


def uses_kernel(body: Iterable[ast.AST], tree: ast.Module) -> bool:
    """Whether statements import or call the kernel, at once or through the file's own functions."""
    return _uses(body, tree, _wrappers(tree))


def names_op(body: Iterable[ast.AST], tree: ast.Module) -> bool:
    """Whether expressions or statements hold the W1/W3 op, called or only named.

    At once or through the file's own functions.
    """
    return _names_op(body, tree, _holders(tree))


def _names_op(body: Iterable[ast.AST], tree: ast.Module, holders: Collection[str]) -> bool:
    names = origins(tree)
    spellings = (resolve(node, names) for node in _walk(body))
    return any(
        _lies_in(origin, OP_HOMES) or origin in holders or (origin == OP and ours(origin, tree))
        for origin in spellings
        if origin is not None
    )


@lru_cache(maxsize=4)
def _holders(tree: ast.Module) -> frozenset[str]:
    """Functions and methods of the file that hold the op."""
    return _through_functions(tree, _names_op, frozenset())


@lru_cache(maxsize=4)
def _wrappers(tree: ast.Module) -> frozenset[str]:
    """Functions and methods of the file that call the kernel, and names that hold it."""
    held = frozenset(f"self.{name}" for name, value in _attributes(tree) if _is_op(value, tree))
    return _through_functions(tree, _uses, held)


def _through_functions(
    tree: ast.Module,
    test: Callable[[Iterable[ast.AST], ast.Module, Collection[str]], bool],
    found: frozenset[str],
) -> frozenset[str]:
    """The names `found`, and the functions and methods whose body passes the test with them."""
    functions = [
        node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    while True:
        more = found | {
            spelling
            for node in functions
            if test(node.body, tree, found)
            for spelling in (node.name, f"self.{node.name}")
        }
        if more == found:
            return found
        found = more


def _attributes(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value


def _is_op(value: ast.AST, tree: ast.Module) -> bool:
    origin = resolve(value, origins(tree)) or ""
    return of_kernel(origin) or (origin == OP and ours(origin, tree))


def _uses(body: Iterable[ast.AST], tree: ast.Module, wrappers: Collection[str]) -> bool:
    names = origins(tree)
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                if any(of_kernel(alias.name) for alias in node.names):
                    return True
            elif isinstance(node, ast.ImportFrom):
                if any(of_kernel(f"{node.module}.{alias.name}") for alias in node.names):
                    return True
            elif isinstance(node, ast.Call):
                if _imports_by_string(node, names) or _is_op(node.func, tree):
                    return True
                if (resolve(node.func, {}) or "") in wrappers:
                    return True
    return False


def _imports_by_string(call: ast.Call, names: Mapping[str, str]) -> bool:
    if (resolve(call.func, names) or "").removeprefix("builtins.") not in IMPORTERS:
        return False
    named = (arg.value for arg in call.args if isinstance(arg, ast.Constant))
    return any(isinstance(name, str) and of_kernel(name) for name in named)


def suppressed_by(node: ast.With | ast.AsyncWith, tree: ast.Module) -> str | None:
    """The name of a context manager of the statement that lets errors disappear, or None."""
    names, own = origins(tree), _swallowing_managers(tree)
    for call in _entered(node):
        origin = resolve(call.func, names) or ""
        if origin in ("contextlib.suppress", "suppress"):
            return "contextlib.suppress"
        if origin in own:
            return origin
    return None


def _entered(node: ast.With | ast.AsyncWith) -> Iterator[ast.Call]:
    """Calls whose result the statement enters, at once or through an ExitStack in its body."""
    for item in node.items:
        if isinstance(item.context_expr, ast.Call):
            yield item.context_expr
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            later = part.func.attr in ("enter_context", "enter_async_context", "push")
            if later and part.args and isinstance(part.args[0], ast.Call):
                yield part.args[0]


@lru_cache(maxsize=4)
def _swallowing_managers(tree: ast.Module) -> frozenset[str]:
    """Context managers of the file whose exit hides errors."""
    names = origins(tree)
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef):
            exits = [f for f in node.body if getattr(f, "name", "") in ("__exit__", "__aexit__")]
            if any(_returns_true(part) for leave in exits for part in ast.walk(leave)):
                found.add(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            manager = any(resolve(d, names) in _MANAGERS for d in node.decorator_list)
            if manager and any(_goes_on_after_yield(part) for part in ast.walk(node)):
                found.add(node.name)
    return frozenset(found)


def _returns_true(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Return) else None
    return isinstance(value, ast.Constant) and value.value is True


def _goes_on_after_yield(node: ast.AST) -> bool:
    if not isinstance(node, ast.Try):
        return False
    yields = any(isinstance(part, ast.Yield) for part in _walk(node.body))
    return yields and any(not always_leaves(handler.body) for handler in node.handlers)


def _walk(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node of some statements."""
    for statement in body:
        yield from ast.walk(statement)


def leaves_by_the_way(body: Iterable[ast.AST], *, in_loop: bool = False) -> ast.AST | None:
    """A `return`, or a `break` or `continue` of a loop outside, that drops a passing error.

    What belongs to a function or a loop inside of the statements drops nothing.
    """
    for node in body:
        if isinstance(node, ast.Return) or (
            isinstance(node, ast.Break | ast.Continue) and not in_loop
        ):
            return node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        loop = in_loop or isinstance(node, ast.For | ast.AsyncFor | ast.While)
        found = leaves_by_the_way(ast.iter_child_nodes(node), in_loop=loop)
        if found is not None:
            return found
    return None
