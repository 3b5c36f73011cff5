from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import calls, keyword

UNPICKLERS = frozenset(
    {
        f"{package}.{name}"
        for package in ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal")
        for name in ("load", "loads", "Unpickler")
    }
    | {"shelve.open", "pandas.read_pickle", "torch.jit.load"}
)


@partial(
    SourceRule,
    code="SP202",
    title="nothing from outside is unpickled",
    why="A pickle is a program: opening one runs what its author wrote. Tensors come as "
    "safetensors, everything else as JSON.",
    bad='import torch\n\nstate = torch.load("optimizer.pt")',
    good='from safetensors.torch import load_file\n\nstate = load_file("optimizer.safetensors")',
)
def rule(module: Module) -> Iterator[SourceProblem]:
    for call, origin in calls(module):
        if origin in UNPICKLERS:
            yield SourceProblem(call, f"{origin} unpickles", "use safetensors or JSON")
        elif origin == "torch.load" and not _is(call, "weights_only", True):
            yield SourceProblem(
                call, "torch.load without weights_only=True unpickles", "use safetensors"
            )
        elif origin == "numpy.load" and not _is(call, "allow_pickle", False):
            value = keyword(call, "allow_pickle")
            if value is not None or any(item.arg is None for item in call.keywords):
                yield SourceProblem(
                    call, "numpy.load with allow_pickle unpickles", "leave allow_pickle out"
                )


def _is(call: ast.Call, name: str, wanted: bool) -> bool:
    value = keyword(call, name)
    return isinstance(value, ast.Constant) and value.value is wanted
