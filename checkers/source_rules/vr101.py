from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, nodes, origins, ours, reached, resolve

GUARD = "require_memory"
TRAINER = ("gptoss_builder", "train", "loop.py")
HOME = ("gptoss_builder", "train", "device.py")


@partial(
    SourceRule,
    code="VR101",
    title="training asks for its memory first, and a refusal stops it",
    why="The check knows the card in the spec; the trainer knows what is free on the one in use. "
    "A guard whose error is caught and printed warns, and then the run dies hours later. Of "
    "gptoss_builder's own files it also asks that train/loop.py calls the guard, and that the "
    "guard in train/device.py raises.",
    bad="try:\n    require_memory(plan, device)\nexcept DeviceError as error:\n    print(error)",
    good="require_memory(plan, device)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    place = module.parts[-3:]
    functions = {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    if place == TRAINER and not _asks(functions, module.tree):
        yield SourceProblem(
            functions.get("train", module.tree),
            f"train never calls {GUARD}",
            f"call {GUARD}(plan, device) before the model is built",
        )
    if place == HOME and not _refuses(functions):
        yield SourceProblem(
            functions.get(GUARD, module.tree), f"{GUARD} refuses nothing", "raise DeviceError"
        )
    for node in nodes(module.tree):
        if isinstance(node, ast.Try) and _calls_guard(node.body, module.tree):
            for handler in node.handlers:
                if not always_leaves(handler.body):
                    yield SourceProblem(
                        handler,
                        f"this catches what {GUARD} refuses and goes on",
                        "let the error through; it says what to set",
                    )


def _asks(functions: dict[str, ast.FunctionDef], tree: ast.Module) -> bool:
    called = reached([name for name in functions if name == "train"], functions)
    return _calls_guard([functions[name] for name in called], tree)


def _refuses(functions: dict[str, ast.FunctionDef]) -> bool:
    guard = functions.get(GUARD)
    return guard is not None and any(isinstance(node, ast.Raise) for node in ast.walk(guard))


def _calls_guard(body: Sequence[ast.stmt], tree: ast.Module) -> bool:
    called = (
        resolve(node.func, origins(tree)) or ""
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    )
    # A function of the user's own that has this name guards something else.
    return any(origin.split(".")[-1] == GUARD and ours(origin, tree) for origin in called)
