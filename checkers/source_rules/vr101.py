from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import always_leaves, nodes, reached

GUARD = "require_memory"
TRAINER = ("gptoss_builder", "train", "loop.py")
HOME = ("gptoss_builder", "train", "device.py")


@partial(
    SourceRule,
    code="VR101",
    title="training asks for its memory first, and a refusal stops it",
    why="The check knows the card in the spec; the trainer knows what is free on the one in use. "
    "A guard whose error is caught and printed warns, and then the run dies hours later.",
    bad="try:\n    require_memory(plan, device)\nexcept DeviceError as error:\n    print(error)",
    good="require_memory(plan, device)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    place = module.parts[-3:]
    functions = {node.name: node for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    if place == TRAINER and not _asks(functions):
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
        if isinstance(node, ast.Try) and any(map(_calls_guard, node.body)):
            for handler in node.handlers:
                if not always_leaves(handler.body):
                    yield SourceProblem(
                        handler,
                        f"this catches what {GUARD} refuses and goes on",
                        "let the error through; it says what to set",
                    )


def _asks(functions: dict[str, ast.FunctionDef]) -> bool:
    called = reached([name for name in functions if name == "train"], functions)
    return any(_calls_guard(functions[name]) for name in called)


def _refuses(functions: dict[str, ast.FunctionDef]) -> bool:
    guard = functions.get(GUARD)
    return guard is not None and any(isinstance(node, ast.Raise) for node in ast.walk(guard))


def _calls_guard(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == GUARD)
            or (isinstance(node.func, ast.Attribute) and node.func.attr == GUARD)
        )
        for node in ast.walk(statement)
    )
