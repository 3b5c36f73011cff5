from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import calls, constants, sanctioned, spelled

RUNNERS = frozenset({"exec", "eval", "compile"})


@partial(
    SourceRule,
    code="TR004",
    title="no kernel is hidden in a string of source",
    why="Source in a string that is executed is source: the rules must see it.",
    bad='exec("import triton")',
    good="import torch",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if sanctioned(module):
        return
    strings = constants(module.tree)
    for call, origin in calls(module):
        if origin.removeprefix("builtins.") in RUNNERS and call.args:
            text = spelled(call.args[0], strings)
            if text is not None and "triton" in text:
                yield SourceProblem(
                    call, f"{origin} runs source that uses triton", "write this part in PyTorch"
                )
