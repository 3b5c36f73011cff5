from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import calls, keyword, nodes, origins, resolve

UNSAFE = frozenset(
    {
        "yaml.unsafe_load",
        "yaml.unsafe_load_all",
        "yaml.full_load",
        "yaml.full_load_all",
    }
)
CHOOSING = frozenset({"yaml.load", "yaml.load_all"})


@partial(
    SourceRule,
    code="SP201",
    title="YAML is read with the safe loader",
    why="YAML's other loaders build Python objects, and a file from outside can run a command.",
    bad="import yaml\n\nvalues = yaml.load(text, Loader=yaml.Loader)",
    good="import yaml\n\nvalues = yaml.safe_load(text)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    names = origins(module.tree)
    safe = {
        node.name
        for node in nodes(module.tree)
        if isinstance(node, ast.ClassDef)
        and any(_safe(resolve(base, names) or "") for base in node.bases)
    }
    for call, origin in calls(module):
        if origin in UNSAFE:
            yield SourceProblem(call, f"{origin} builds objects", "use yaml.safe_load")
        elif origin in CHOOSING:
            loader = keyword(call, "Loader") or (call.args[1] if len(call.args) > 1 else None)
            chosen = [loader.body, loader.orelse] if isinstance(loader, ast.IfExp) else [loader]
            kinds = [resolve(kind, names) if kind is not None else None for kind in chosen]
            if not all(kind is not None and (_safe(kind) or kind in safe) for kind in kinds):
                yield SourceProblem(call, f"{origin} without the safe loader", "use yaml.safe_load")


def _safe(origin: str) -> bool:
    return origin.rsplit(".", maxsplit=1)[-1].removeprefix("C") in ("SafeLoader", "BaseLoader")
