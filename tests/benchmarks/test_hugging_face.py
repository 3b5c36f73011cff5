"""Hugging Face's side of the training-step benchmark computes in bf16 where it says so."""

import pytest
import torch

from benchmarks import hugging_face
from gptoss_builder.pipeline import make_plan
from tests.model.plans import tiny_spec

pytest.importorskip("transformers", reason="needs the extra `reference`")


@pytest.fixture(scope="module")
def plan():
    return make_plan(tiny_spec(moe={"d_ff": 24}), target="cpu")


def test_the_model_has_the_plans_size(plan):
    module = hugging_face.model(plan, "hf-bf16", device="cpu")
    spec = plan.spec.model
    gates = spec.layers * spec.d_model  # of the shared experts
    sinks = spec.layers * spec.attention.heads
    count = sum(parameter.numel() for parameter in module.parameters())
    assert count == plan.parameters.total - sinks + gates
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


@pytest.mark.filterwarnings("ignore::UserWarning")  # dynamo's, of transformers' code
@pytest.mark.parametrize(("how", "dtype"), [("hf", torch.bfloat16), ("hf-as-is", torch.float32)])
def test_experts_products_run_in_bf16_where_weights_are_cast(plan, how, dtype):
    module = hugging_face.model(plan, how, device="cpu")
    seen = []

    def backend(graph, _):
        seen.extend(
            node.args[1].meta["example_value"].dtype
            for node in graph.graph.nodes
            if "grouped_mm" in str(node.target)
        )
        return graph.forward

    compiled = torch.compile(module, backend=backend)
    tokens_BT = torch.randint(plan.spec.model.vocab, (2, 16))
    loss = hugging_face.loss_of(compiled, tokens_BT, how)
    loss.backward()
    assert seen == [dtype] * (2 * plan.spec.model.layers)
    assert loss.dtype == torch.float32
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())
