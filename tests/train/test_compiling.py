"""What a training compiles, and that any number of trainings in one process get it compiled."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gptoss_builder.errors import RunError
from gptoss_builder.model.build import build
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train import compiling
from gptoss_builder.train.loss import linear_cross_entropy
from tests.train.runs import run, small_plan

# The compiler trips over torch's own warnings; to give up on a function is a warning too, but the
# graphs are counted here.
pytestmark = pytest.mark.filterwarnings("ignore")

WINDOWS = {
    "layers": 2,
    "attention": {
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "pattern": ["window", "full"],
        "window": 5,
    },
}
KINDS = len({"window", "full", "final norm"})
MODES = len({"training", "held-out loss"})
LOSS = len({"statistics", "softmax"})


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts of graphs that were traced and, under `break`, breaks; they run uncompiled."""
    # At the top it would import triton before the kernels' tests choose its interpreter.
    from torch._dynamo.utils import counters

    def forget() -> None:
        torch._dynamo.reset()
        counters.clear()
        compiling.compiled.cache_clear()
        compiling.own_copy.cache_clear()

    forget()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    yield counters["stats"]
    assert not counters["graph_break"]
    forget()


def _plan(folder: Path, **training: object) -> Plan:
    training = {"compile": True, "steps": 2, "loss_chunk": 7} | training
    return small_plan(folder, training=training, model=WINDOWS)


def test_a_whole_step_has_no_graph_break(tmp_path: Path, counters: Counter[str]) -> None:
    run(_plan(tmp_path, accumulate=2, checkpoint_every=2), tmp_path / "run")
    chunks = len({7, 2 * 16 % 7})
    assert counters["unique_graphs"] == KINDS * MODES + LOSS * chunks


def test_trainings_of_any_number_of_sizes_are_compiled(
    tmp_path: Path, counters: Counter[str]
) -> None:
    for count, context in enumerate(range(10, 14), start=1):  # the third was one too many
        run(_plan(tmp_path, context=context, loss_chunk=1000), tmp_path / str(context))
        assert counters["unique_graphs"] == count * (KINDS * MODES + LOSS)


def test_trainings_of_one_size_share_what_was_compiled(
    tmp_path: Path, counters: Counter[str]
) -> None:
    for name, rate in (("one", 1e-2), ("two", 1e-3)):
        plan = _plan(tmp_path, optimizer={"lr": rate}, loss_chunk=1000)
        run(plan, tmp_path / name)
        assert counters["unique_graphs"] == KINDS * MODES + LOSS


def test_a_model_may_be_frozen_in_any_pattern(tmp_path: Path, counters: Counter[str]) -> None:
    plan = small_plan(
        tmp_path,
        training={"compile": True, "steps": 1, "loss_chunk": 1000},
        model=WINDOWS | {"layers": 8},
    )
    model = build(plan)
    model.embedding.requires_grad_(False)
    for number, block in enumerate(model.blocks):
        for place, parameter in enumerate(block.parameters()):
            parameter.requires_grad_(bool(number >> place % 3 & 1))
    run(plan, tmp_path / "run", model=model)
    assert counters["unique_graphs"] == (8 + len({"final norm"})) * MODES + LOSS


def test_a_loss_of_any_number_of_sizes_is_compiled(counters: Counter[str]) -> None:
    for count, vocab in enumerate(range(50, 62), start=1):
        x_TD, w_VD = torch.randn(9, 6), torch.randn(vocab, 6)
        label_T = torch.randint(vocab, (9,))
        for z_loss in (0.0, 0.1):
            arguments = {"chunk": 20, "z_loss": z_loss}
            plain, _ = linear_cross_entropy(x_TD, w_VD, label_T, **arguments)
            ours, _ = linear_cross_entropy(x_TD, w_VD, label_T, **arguments, compiled=True)
            assert torch.equal(ours, plain)
        assert counters["unique_graphs"] == count * LOSS * 2


class _Own(nn.Module):
    """A module that is not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 8)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight

    def hidden(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed(tokens_BT), torch.zeros(())


def test_a_users_module_of_any_number_of_sizes_is_compiled(
    tmp_path: Path, counters: Counter[str]
) -> None:
    for count, context in enumerate(range(10, 22), start=1):
        plan = _plan(tmp_path, context=context, loss_chunk=1000)
        run(plan, tmp_path / str(context), model=_Own())
        assert counters["unique_graphs"] == count * (MODES + LOSS)


def test_a_compiler_that_fails_ends_the_run_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> None:
        raise RuntimeError("no compiler found in PATH\n\nand much more that helps nobody")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=broken))
    torch._dynamo.reset()
    with pytest.raises(RunError, match=r"step 1 cannot be compiled: .*no compiler found") as caught:
        run(_plan(tmp_path), tmp_path / "run")
    assert "set training.compile: false" in str(caught.value)
    assert "helps nobody" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_of_a_users_module_is_left_as_it_is(tmp_path: Path) -> None:
    class Failing(_Own):
        def hidden(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        run(_plan(tmp_path, compile=False), tmp_path / "run", model=Failing())


def test_a_copy_does_what_the_function_does_and_is_another_code_object() -> None:
    base = 3

    def scaled(self: object, x: int, y: int = 2, *, z: int = 5) -> int:
        return base * (x + y + z)

    one, again, two = (compiling.own_copy(scaled, key) for key in ("one", "one", "two"))
    assert one is again
    assert len({id(f.__code__) for f in (scaled, one, two)}) == 3
    assert one(None, 1) == scaled(None, 1) == 24
