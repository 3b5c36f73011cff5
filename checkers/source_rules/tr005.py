from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial

from checkers.rule import Module, SourceProblem, SourceRule
from checkers.syntax import SANCTIONED, nodes, origins, reached, resolve

PREFIX = "w1w3"


@partial(
    SourceRule,
    code="TR005",
    title="the kernel file launches the W1/W3 kernel alone",
    why="The file that may use Triton is a licence for one kernel. Another one in the same file "
    "is one kernel too many. Read are gptoss_builder/kernels/w1w3_triton.py and compile.py alone; "
    "TR001 to TR004 read every other file.",
    bad="@triton.jit\ndef norm_kernel(x_ptr):\n    ...\n\n\n"
    "norm_kernel[(1,)](x)   # in gptoss_builder/kernels/w1w3_triton.py",
    good="@triton.jit\ndef w1w3_kernel(x_ptr):\n    ...\n\n\nw1w3_kernel[(1,)](x)",
)
def rule(module: Module) -> Iterator[SourceProblem]:
    if module.parts[-3:] not in SANCTIONED:
        return
    jitted = _jitted(module)
    parts = reached((name for name in jitted if name.startswith(PREFIX)), jitted)
    for name, function in jitted.items():
        if name not in parts:
            yield SourceProblem(
                function,
                f"{name} is a kernel of its own, not a part of W1/W3's",
                f"write it in PyTorch; a kernel here is named {PREFIX}…, or called by one",
            )


def _jitted(module: Module) -> Mapping[str, ast.FunctionDef]:
    names = origins(module.tree)
    return {
        node.name: node
        for node in nodes(module.tree)
        if isinstance(node, ast.FunctionDef)
        and any(
            (resolve(d.func if isinstance(d, ast.Call) else d, names) or "").endswith("triton.jit")
            for d in node.decorator_list
        )
    }
