from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gptoss_builder.model.transformer import Transformer
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec
from tests.tolerances import assert_close, relative_error

# The compiler trips over torch's own warnings: it instantiates autograd functions and reads the
# gradient of tensors that are no leaves.
pytestmark = pytest.mark.filterwarnings("ignore")


def compile_parts(model: Transformer, **options: object) -> None:
    """As the trainer does."""
    for part in (*model.blocks, model.norm):
        part.compile(fullgraph=True, dynamic=False, **options)


def gradients(
    *,
    compiled: bool = False,
    every: int = 0,
    dtype: torch.dtype = torch.float32,
    bf16: bool = False,
) -> torch.Tensor:
    """Loss and every gradient as one vector; with two experts of two no rounding reroutes."""
    spec = tiny_spec(
        layers=4,
        init_std=0.1,
        moe={"experts": 2},
        training={"checkpoint_every": every},
    )
    model = randomized(tiny_plan(spec), dtype=dtype)
    if compiled:
        compile_parts(model)
    tokens = random_tokens(2, 13)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        output = model(tokens)
    loss = F.cross_entropy(output.logits_BTV.flatten(0, 1), tokens.roll(-1, 1).flatten())
    (loss + output.aux_loss).backward()
    parts = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    return torch.cat([part.double().flatten() for part in parts])


@pytest.mark.parametrize("autocast", [False, True])
def test_each_kind_of_block_and_the_final_norm_are_one_graph_each(autocast: bool) -> None:
    # At the top it would import triton before the kernels' tests choose its interpreter.
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    spec = tiny_spec(layers=6, training={"checkpoint_every": 2})
    model = randomized(tiny_plan(spec), dtype=torch.float32)
    compile_parts(model, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        x_BTD, aux = model.hidden(random_tokens(2, 13))
    (x_BTD.float().square().mean() + aux).backward()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == len({"window", "full", "final norm"})


@pytest.mark.slow
def test_compile_and_checkpointing_change_no_gradient() -> None:
    torch._dynamo.reset()
    plain = gradients()
    for compiled, every in ((False, 1), (True, 0), (True, 1), (True, 3)):
        assert_close(gradients(compiled=compiled, every=every), plain, torch.float32)


@pytest.mark.slow
def test_compiled_bf16_is_as_near_to_fp64_as_eager_and_checkpointing_changes_no_bit() -> None:
    torch._dynamo.reset()
    exact = gradients(dtype=torch.float64)
    eager = relative_error(gradients(bf16=True), exact)
    compiled = gradients(bf16=True, compiled=True)
    assert 0 < relative_error(compiled, exact) < 1.5 * eager < 3e-2
    for every in (1, 3):
        assert torch.equal(gradients(bf16=True, compiled=True, every=every), compiled)


def test_compiling_changes_no_parameter_name() -> None:
    model = randomized(tiny_plan())
    names = list(model.state_dict())
    compile_parts(model)
    assert list(model.state_dict()) == names
