from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checkers.facts import precision
from checkers.rule import Problem, TargetRule
from gptoss_builder.plan.launch import ELEMENT_BYTES, of_spec, shape_problems, shared_memory_bytes
from gptoss_builder.spec.schema import Spec
from gptoss_builder.targets import ARCHITECTURES, Target


@partial(
    TargetRule,
    code="KL003",
    title="a block's shared memory is within the card's limit",
    why="Triton compiles a kernel that is too large without a word, and the launch fails with "
    "OutOfResources. A stage holds a tile of x and one each of W1 and W3.",
    bad="kernel: {block_t: 128, block_k: 128, block_n: 64, num_warps: 8, num_stages: 4}\n"
    "target: {gpu: rtx4090}",
    good="kernel: {block_t: 128, block_k: 64, block_n: 64, num_warps: 8, num_stages: 3}\n"
    "target: {gpu: rtx4090}",
    reads=("kernel", "training.precision"),
)
def rule(spec: Spec, target: Target) -> Iterator[Problem]:
    if spec.kernel == "auto" or target.arch == "cpu":
        return
    dtype = precision(spec, target)
    config, element = of_spec(spec.kernel), ELEMENT_BYTES[dtype]
    limit = ARCHITECTURES[target.arch].shared_memory_per_block
    needed = shared_memory_bytes(config, target.arch, element)
    if needed <= limit or shape_problems(config):
        return
    fitting = [
        stages
        for stages in range(1, config.num_stages)
        if shared_memory_bytes(
            config.model_copy(update={"num_stages": stages}), target.arch, element
        )
        <= limit
    ]
    yield Problem(
        "kernel.num_stages" if fitting else "kernel.block_n",
        f"a block needs {needed:,} bytes of shared memory, and {target.name} ({target.arch}) "
        f"has {limit:,}",
        f"set num_stages to {max(fitting)}, or use smaller blocks"
        if fitting
        else "halve block_n or block_k: no number of stages makes it fit",
    )
