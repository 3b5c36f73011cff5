from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec
from tests.tolerances import assert_close

# The compiler trips over torch's own warnings: it instantiates autograd functions and reads the
# gradient of tensors that are no leaves.
pytestmark = pytest.mark.filterwarnings("ignore")


def loss_and_gradients(*, compiled: bool, every: int, autocast: bool):
    spec = tiny_spec(layers=4, training={"checkpoint_every": every, "compile": compiled})
    model = randomized(tiny_plan(spec), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(random_tokens(2, 13))
        loss = output.logits_BTV.square().mean() + output.aux_loss
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("autocast", [False, True])
def test_each_kind_of_block_is_one_graph(autocast: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    spec = tiny_spec(layers=6, training={"checkpoint_every": 2})
    model = randomized(tiny_plan(spec), dtype=torch.float32)
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        x_BTD, aux = model.hidden(random_tokens(2, 13))
    (x_BTD.float().square().mean() + aux).backward()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == len({"window", "full"})


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_compile_and_checkpointing_change_neither_loss_nor_gradients(autocast: bool) -> None:
    torch._dynamo.reset()
    loss, gradients = loss_and_gradients(compiled=False, every=0, autocast=autocast)
    dtype = torch.bfloat16 if autocast else torch.float32
    for compiled, every in ((False, 1), (True, 0), (True, 1), (True, 3)):
        other_loss, others = loss_and_gradients(compiled=compiled, every=every, autocast=autocast)
        assert_close(other_loss, loss, dtype)
        for name, gradient in gradients.items():
            assert_close(others[name], gradient, dtype, name=name)


@pytest.mark.slow
def test_compiling_changes_no_parameter_name() -> None:
    names = [
        list(randomized(tiny_plan(tiny_spec(training={"compile": on}))).state_dict())
        for on in (False, True)
    ]
    assert names[0] == names[1]
