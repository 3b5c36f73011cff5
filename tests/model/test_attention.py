from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gptoss_builder.errors import DeviceError, InputError
from gptoss_builder.model import attention_math
from gptoss_builder.model.attention import Attention
from gptoss_builder.model.attention_fused import attend_cudnn, attend_flash
from gptoss_builder.model.attention_math import attend_math
from gptoss_builder.model.transformer import Transformer
from tests.model.plans import random_tokens, randomized, tiny_plan, tiny_spec
from tests.tolerances import assert_close


def by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None, window: int | None
) -> torch.Tensor:
    """One query at a time, one head at a time; the last query stands at the last key."""
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            at = k.shape[1] - q.shape[1] + i
            first = 0 if window is None else max(0, at - window + 1)
            for h in range(q.shape[2]):
                group = h // (q.shape[2] // k.shape[2])
                scores = k[b, first : at + 1, group] @ q[b, i, h] / q.shape[3] ** 0.5
                if sink is not None:
                    scores = torch.cat([scores, sink[h : h + 1]])
                chance = scores.softmax(0)[: at + 1 - first]
                out.append(chance @ v[b, first : at + 1, group])
    return torch.stack(out).view(q.shape)


def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """q, k, v and sinks: 2 sequences, 6 query heads on 2 key heads of width 10."""
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = [(2, queries, 6, 10), (2, keys, 2, 10), (2, keys, 2, 10), (6,)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("window", [None, 1, 3, 12, 13, 14])
@pytest.mark.parametrize("sinks", [True, False])
@pytest.mark.parametrize("chunk", [4, 256])
def test_math_equals_the_softmax_by_hand(
    window: int | None, sinks: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_math, "QUERY_CHUNK", chunk)
    q, k, v, sink = inputs(13, 13)
    leaves = [q, k, v, sink] if sinks else [q, k, v]
    used = sink if sinks else None
    grad = torch.randn_like(q)
    ours, exact = attend_math(q, k, v, used, window), by_hand(q, k, v, used, window)
    assert_close(ours, exact)
    for actual, expected in zip(
        torch.autograd.grad(ours, leaves, grad),
        torch.autograd.grad(exact, leaves, grad),
        strict=True,
    ):
        assert_close(actual, expected)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (4, 9), (9, 9)])
@pytest.mark.parametrize("window", [None, 3])
def test_the_last_query_stands_at_the_last_key(queries: int, keys: int, window: int | None) -> None:
    q, k, v, sink = inputs(queries, keys)
    assert_close(attend_math(q, k, v, sink, window), by_hand(q, k, v, sink, window))


def test_a_window_counts_the_query_itself() -> None:
    """Values that are one-hot show which keys a row saw."""
    length, window = 6, 3
    q, k = torch.randn(1, length, 1, length), torch.randn(1, length, 1, length)
    v = torch.eye(length)[None, :, None]
    seen = (attend_math(q, k, v, None, window) > 0).sum(-1).flatten()
    assert seen.tolist() == [1, 2, 3, 3, 3, 3]


def test_a_window_of_one_returns_the_value_itself() -> None:
    q, k, v, _ = inputs(7, 7)
    out = attend_math(q, k, v, None, 1)
    assert_close(out, v.repeat_interleave(3, dim=2))


def test_a_large_sink_takes_everything_and_a_small_one_nothing() -> None:
    q, k, v, _ = inputs(5, 5)
    assert attend_math(q, k, v, torch.full((6,), 1e4), None).abs().max() == 0
    assert_close(
        attend_math(q, k, v, torch.full((6,), -1e4, dtype=torch.float64), None),
        attend_math(q, k, v, None, None),
    )


def test_half_precision_inputs_have_an_fp32_softmax() -> None:
    q, k, v, sink = inputs(65, 65, torch.bfloat16)
    exact = by_hand(*(x.detach().double() for x in (q, k, v, sink)), window=9)
    assert_close(attend_math(q, k, v, sink, 9), exact)


def layer_kernels(**execution: str) -> list[str]:
    with torch.device("meta"):
        model = Transformer(tiny_plan(**execution))
    return [block.attention.kernel for block in model.blocks]


def test_each_layer_runs_the_kernel_that_the_plan_names() -> None:
    kernels = layer_kernels(window_attention="flash", full_attention="cudnn")
    assert kernels == ["flash", "cudnn", "flash"]


def test_cudnn_for_a_window_layer_is_refused() -> None:
    with pytest.raises(InputError, match="cuDNN's attention in PyTorch has no window"):
        layer_kernels(window_attention="cudnn")


@pytest.mark.parametrize(("kernel", "head_dim"), [("flash", 12), ("flash", 264), ("cudnn", 136)])
def test_a_head_that_the_kernel_cannot_take_is_refused(kernel: str, head_dim: int) -> None:
    spec = tiny_spec(attention={"head_dim": head_dim, "pattern": ["full"]})
    with pytest.raises(InputError, match=f"the {kernel} attention kernel needs a head_dim"):
        Attention(tiny_plan(spec, full_attention=kernel), 0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 9)])
def test_lengths_that_cudnn_cannot_take_are_refused(queries: int, keys: int) -> None:
    with pytest.raises(InputError, match="as many keys as queries and at least two"):
        attend_cudnn(*inputs(queries, keys, torch.bfloat16))


def test_heads_that_do_not_divide_are_refused() -> None:
    spec = tiny_spec(attention={"heads": 5})
    with pytest.raises(InputError, match="multiple of kv_heads"):
        Attention(tiny_plan().model_copy(update={"spec": spec}), 0)


def test_a_fused_kernel_refuses_fp32_and_a_cpu_before_it_runs() -> None:
    spec = tiny_spec(attention={"pattern": ["full"]})
    model = randomized(tiny_plan(spec, full_attention="flash"), dtype=torch.float32)
    with pytest.raises(DeviceError, match=r"takes bf16, not torch\.float32"):
        model(random_tokens(1, 4))
    with pytest.raises(DeviceError, match="runs on a GPU, not on cpu"):
        model.bfloat16()(random_tokens(1, 4))


def fused(kernel: str, q, k, v, sink):
    if kernel == "cudnn":
        return attend_cudnn(q, k, v, sink)
    return attend_flash(q, k, v, sink, 3 if kernel == "windowed flash" else None)


@pytest.mark.parametrize("kernel", ["flash", "windowed flash", "cudnn"])
def test_fused_kernels_trace_under_fake_tensors(kernel: str) -> None:
    """The memory oracle runs the model this way, on a machine without a GPU."""
    with FakeTensorMode():
        q = torch.empty(2, 65, 8, 64, dtype=torch.bfloat16, requires_grad=True)
        k, v = (
            torch.empty(2, 65, 4, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
        )
        sink = torch.empty(8, requires_grad=True)
        out = fused(kernel, q, k, v, sink)
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        out.sum().backward()
        for leaf in (q, k, v, sink):
            assert (leaf.grad.shape, leaf.grad.dtype) == (leaf.shape, leaf.dtype)


def test_a_fused_model_runs_forward_and_backward_under_fake_tensors() -> None:
    spec = tiny_spec(attention={"heads": 4, "kv_heads": 2, "head_dim": 16})
    plan = tiny_plan(spec, window_attention="flash", full_attention="cudnn", precision="bf16")
    with FakeTensorMode():
        model = Transformer(plan)
        with torch.autocast("cpu", torch.bfloat16):
            x_BTD, aux = model.hidden(torch.zeros(2, 9, dtype=torch.int64))
        (x_BTD.float().sum() + aux).backward()
        assert all(parameter.grad is not None for parameter in model.blocks.parameters())


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("kernel", ["flash", "windowed flash", "cudnn"])
def test_fused_kernels_are_one_graph_for_the_compiler(kernel: str) -> None:
    """Dynamo traces kernel and sinks without a break; it runs nothing here."""
    graphs: list[torch.fx.GraphModule] = []

    def capture(graph: torch.fx.GraphModule, _inputs: object):
        graphs.append(graph)
        return lambda *arguments: (arguments[0],)

    q = torch.empty(2, 65, 8, 64, dtype=torch.bfloat16)
    k, v = (torch.empty(2, 65, 4, 64, dtype=torch.bfloat16) for _ in range(2))
    torch.compile(fused, backend=capture, fullgraph=True)(kernel, q, k, v, torch.empty(8))
    assert len(graphs) == 1
