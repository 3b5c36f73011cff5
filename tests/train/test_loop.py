"""Whole runs: exact resume, accumulation, the guard, what is refused, what is recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gptoss_builder.errors import (
    ArtifactError,
    DataError,
    DeviceError,
    DivergedError,
    InputError,
    RunError,
)
from gptoss_builder.kernels.launches import launches
from gptoss_builder.model.build import build
from gptoss_builder.train.loss import IGNORE
from gptoss_builder.train.optim import learning_rate
from tests.tolerances import assert_close
from tests.train.runs import lines, run, same, small_plan, weights


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("stop_after", [1, 3, 6])  # the warm-up has two steps
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, accumulate: int, stop_after: int
) -> None:
    # 8 steps of 2 · accumulate sequences of 10: with 4, step 3 is in epoch 3.
    plan = small_plan(tmp_path, training={"accumulate": accumulate})
    short = plan.spec.data.model_copy(update={"holdout": 0.85})
    plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"data": short})})
    whole = run(plan, tmp_path / "whole")
    run(plan, tmp_path / "parts", stop_after=stop_after)
    assert [line["step"] for line in lines(tmp_path / "parts")] == list(range(1, stop_after + 1))
    resumed = run(plan, tmp_path / "parts", resume="auto")
    assert resumed.trained == 8 - stop_after
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert len({line["loss"] for line in lines(tmp_path / "whole")}) == 8
    assert same(weights(resumed.model), weights(whole.model))
    assert resumed.held_out == whole.held_out


def test_accumulation_equals_one_large_micro_batch(tmp_path: Path) -> None:
    # Without the auxiliary loss, which is not linear in the batch.
    moe = {"experts": 3, "top_k": 2, "d_ff": 8, "aux_loss": 0.0}
    results = []
    for name, shape in (("one", (8, 1)), ("four", (2, 4))):
        training = {"micro_batch": shape[0], "accumulate": shape[1], "steps": 3}
        plan = small_plan(tmp_path, training=training, model={"moe": moe})
        run(plan, tmp_path / name)
        results.append(lines(tmp_path / name))
    for one, four in zip(*results, strict=True):
        assert one["loss"] == pytest.approx(four["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(four["grad_norm"], rel=1e-4)


def test_the_auxiliary_loss_is_averaged_and_reaches_the_router(tmp_path: Path) -> None:
    class Repeated(_Sequences):
        def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
            return super().sequence(position % 2)

    numbers = []
    for name, accumulate in (("one", 1), ("four", 4)):
        plan = small_plan(tmp_path, training={"accumulate": accumulate, "steps": 1})
        run(plan, tmp_path / name, data=Repeated())
        numbers.append(lines(tmp_path / name)[0])
    for key in ("loss", "aux_loss", "grad_norm"):
        assert numbers[0][key] == pytest.approx(numbers[1][key], rel=1e-5)
    assert numbers[0]["aux_loss"] == pytest.approx(1.0, abs=0.3)


def _records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "run.jsonl").read_text().splitlines()]


class _Sequences:
    """Data of a user's own: labels are ignored where `ignore` says so."""

    identity = "own"
    held_out_count = 1

    def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.random.RandomState(position).randint(0, 256, 17)
        labels = tokens[1:].copy()
        labels[self.ignore(position)] = IGNORE
        return tokens[:-1], labels

    def held_out(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.sequence(10**6 + index)

    def ignore(self, position: int) -> slice:
        return slice(0, 0)


def test_the_loss_is_the_mean_over_valid_labels_of_all_micro_batches(tmp_path: Path) -> None:
    class Unequal(_Sequences):
        def ignore(self, position: int) -> slice:
            return slice(0, (5 * position) % 17)

    plan = small_plan(tmp_path, training={"accumulate": 3, "steps": 1})
    run(plan, tmp_path / "run", data=Unequal())
    model = build(plan)
    data = Unequal()
    tokens, labels = (
        torch.from_numpy(np.stack([data.sequence(position)[part] for position in range(6)]))
        for part in (0, 1)
    )
    logits = model(tokens).logits_BTV.flatten(0, 1)
    want = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE)
    assert lines(tmp_path / "run")[0]["loss"] == pytest.approx(want.item(), rel=1e-5)


def test_a_step_without_a_valid_label_changes_nothing(tmp_path: Path) -> None:
    class Masked(_Sequences):
        def ignore(self, position: int) -> slice:
            return slice(None)

    plan = small_plan(tmp_path, training={"steps": 2})
    result = run(plan, tmp_path / "run", data=Masked(), model=(model := build(plan)))
    assert same(weights(model), weights(build(plan)))
    assert [line["loss"] for line in lines(tmp_path / "run")] == [0.0, 0.0]
    assert result.steps_done == 2


def test_a_part_without_a_valid_label_runs_nothing_and_misses_nothing(tmp_path: Path) -> None:
    class Late(_Sequences):
        held_out_count = 0

        def ignore(self, position: int) -> slice:
            return slice(0, 16 if position < 4 else 0)  # two steps of two

    plan = small_plan(tmp_path)
    assert run(plan, tmp_path / "run", data=Late(), stop_after=2).steps_done == 2
    run(plan, tmp_path / "run", data=Late(), resume="auto")
    records = _records(tmp_path / "run")
    assert [bool(record["ran"]["launches"]) for record in records] == [False, True]
    assert [record["differences"] for record in records] == [[], []]


def _poison(model: nn.Module, calls: set[int]) -> None:
    """Put one NaN in one gradient at some backward passes, counted from 0."""
    count = iter(range(1000))

    def hook(gradient: Tensor) -> Tensor:
        if next(count) in calls:
            gradient = gradient.clone()
            gradient.view(-1)[3] = math.nan
        return gradient

    model.get_parameter("blocks.0.attention.wo").register_hook(hook)


def test_a_gradient_with_a_nan_is_skipped_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    model = build(plan)
    _poison(model, {2, 3})
    before = weights(model)
    run(plan, tmp_path / "run", model=model, stop_after=4)
    numbers = lines(tmp_path / "run")
    assert [line["finite"] for line in numbers] == [True, True, False, False]
    assert [line["grad_norm"] is None for line in numbers] == [False, False, True, True]
    assert all(math.isfinite(line["loss"]) for line in numbers)
    clean = build(plan)
    run(plan, tmp_path / "clean", model=clean, stop_after=2)
    assert same(weights(model), weights(clean))  # steps 3 and 4 left no trace
    assert not same(weights(model), before)


def test_too_many_skipped_steps_stop_the_run_also_across_a_resume(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"nan_guard": {"max_consecutive": 4}})
    model = build(plan)
    _poison(model, {1, 2, 3, 4, 5, 6})
    run(plan, tmp_path / "run", model=model, stop_after=3)
    model = build(plan)
    _poison(model, {0, 1, 2, 3})
    with pytest.raises(DivergedError, match="4 steps in a row up to step 5"):
        run(plan, tmp_path / "run", model=model, resume="auto")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_guard_that_is_off_is_recorded_and_lets_the_nan_through(tmp_path: Path) -> None:
    guard = {"enabled": False, "consent": "seeing it happen"}
    plan = small_plan(tmp_path, training={"nan_guard": guard, "steps": 3})
    model = build(plan)
    _poison(model, {1})
    run(plan, tmp_path / "run", model=model)
    assert all(parameter.isnan().any() for parameter in model.parameters())
    record = _records(tmp_path / "run")
    assert record[0]["events"] == ["the NaN guard is off: seeing it happen"]


def test_the_rate_follows_optimizer_steps(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"accumulate": 4})
    run(plan, tmp_path / "run")
    optimizer = plan.spec.training.optimizer
    assert [line["lr"] for line in lines(tmp_path / "run")] == [
        learning_rate(index, 8, optimizer) for index in range(8)
    ]


def test_training_lowers_the_held_out_loss_below_the_unigram_entropy(tmp_path: Path) -> None:
    training = {"steps": 60, "micro_batch": 8, "optimizer": {"lr": 2e-2, "warmup_steps": 5}}
    result = run(small_plan(tmp_path, training=training), tmp_path / "run")
    assert result.held_out.loss < 0.8 * result.held_out.unigram_entropy
    text = (tmp_path / "text.txt").read_bytes() + b"\0"
    first = len(text) - int(len(text) * 0.1) + 1
    counts = np.bincount(np.frombuffer(text[first : first + 64], np.uint8))
    share = counts[counts > 0] / 64
    assert result.held_out.tokens == 64
    assert result.held_out.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())


def test_bf16_trains_masters_in_fp32_and_resumes_exactly(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"precision": "bf16", "accumulate": 2})
    whole = run(plan, tmp_path / "whole")
    assert {p.dtype for p in whole.model.parameters()} == {torch.float32}
    run(plan, tmp_path / "parts", stop_after=5)
    resumed = run(plan, tmp_path / "parts", resume="auto")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same(weights(resumed.model), weights(whole.model))
    record = _records(tmp_path / "whole")
    assert set(record[0]["ran"]["parameter_types"]) == {"bfloat16", "float32"}
    fp32 = run(small_plan(tmp_path, training={"accumulate": 2}), tmp_path / "fp32")
    assert whole.held_out.loss == pytest.approx(fp32.held_out.loss, rel=2e-2)


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"steps": 2})
    first = run(plan, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    second = run(plan, tmp_path / "run", resume="auto")
    assert (second.trained, second.steps_done) == (0, 2)
    assert second.checkpoint == first.checkpoint
    assert same(weights(second.model), weights(first.model))
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}
    assert after == before


def test_a_run_directory_in_use_is_refused_and_auto_starts_an_empty_one(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"steps": 1})
    run(plan, tmp_path / "run", resume="auto")
    (entry,) = _records(tmp_path / "run")
    assert entry["events"] == [f"no checkpoint in {tmp_path / 'run'}: the run starts"]
    with pytest.raises(InputError, match="stop_after is 0"):
        run(plan, tmp_path / "other", stop_after=0)
    with pytest.raises(InputError, match="holds a run already; continue it with --resume"):
        run(plan, tmp_path / "run")


@pytest.mark.parametrize(
    ("training", "spec", "named"),
    [
        ({"context": 8}, {}, "training.context: 16 → 8"),
        ({}, {"seed": 4}, "seed: 3 → 4"),
        ({}, {"model": "eps"}, "model.norm_eps: 1e-05 → 0.001"),
    ],
)
def test_a_change_of_model_or_data_order_is_refused(
    tmp_path: Path, training: dict[str, int], spec: dict[str, object], named: str
) -> None:
    run(small_plan(tmp_path), tmp_path / "run", stop_after=1)
    model = {"norm_eps": 1e-3} if spec.pop("model", None) else None
    changed = small_plan(tmp_path, training=training, model=model, **spec)
    with pytest.raises(InputError, match="another model or data order") as caught:
        run(changed, tmp_path / "run", resume="auto")
    assert named in str(caught.value)


def test_a_changed_rate_is_applied_and_recorded(tmp_path: Path) -> None:
    run(small_plan(tmp_path), tmp_path / "run", stop_after=4)
    changed = {"optimizer": {"lr": 5e-3, "warmup_steps": 2}, "micro_batch": 3, "steps": 6}
    plan = small_plan(tmp_path, training=changed)
    run(plan, tmp_path / "run", resume="auto")
    rates = [line["lr"] for line in lines(tmp_path / "run")]
    assert rates[4:] == [learning_rate(k, 6, plan.spec.training.optimizer) for k in (4, 5)]
    record = _records(tmp_path / "run")
    assert record[1]["events"] == [
        "resumed from step-00000004",
        "training.micro_batch: 2 → 3",
        "training.optimizer.lr: 0.01 → 0.005",
        "training.steps: 8 → 6",
    ]
    state = json.loads((tmp_path / "run/checkpoints/step-00000006/state.json").read_text())
    assert state["sequences"] == 4 * 2 + 2 * 3


def test_other_data_is_refused_on_resume(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    run(plan, tmp_path / "run", stop_after=1)
    (tmp_path / "text.txt").write_text("other text\n" * 100)
    with pytest.raises(ArtifactError, match="trained on other data"):
        run(plan, tmp_path / "run", resume="auto")


def test_an_older_checkpoint_of_a_run_that_went_on_is_refused(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"save_every": 2})
    run(plan, tmp_path / "run", stop_after=4)
    old = tmp_path / "run/checkpoints/step-00000002"
    with pytest.raises(InputError, match="gone on to step-00000004"):
        run(plan, tmp_path / "run", resume=old)
    branch = run(plan, tmp_path / "branch", resume=old)
    whole = run(plan, tmp_path / "whole")
    assert same(weights(branch.model), weights(whole.model))


def test_after_a_crash_the_repeated_steps_are_logged_once(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"save_every": 3})
    run(plan, tmp_path / "run", stop_after=3)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 9.9}\n{"step": 5, "lo')  # cut off in the middle
    run(plan, tmp_path / "run", resume="auto")
    run(plan, tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


@pytest.mark.parametrize(
    "line", [b"\xd7\n", b"[]\n", b'{"step": 1e999}\n', b'{"step": 1', b'{"step": 1}']
)
def test_a_damaged_line_of_the_metrics_is_dropped(tmp_path: Path, line: bytes) -> None:
    plan = small_plan(tmp_path, training={"steps": 2})
    run(plan, tmp_path / "run", stop_after=1)
    before = lines(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(line)
    run(plan, tmp_path / "run", resume="auto")
    assert lines(tmp_path / "run")[:1] == before
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2]


def test_a_broken_newest_checkpoint_repeats_the_steps_after_the_one_before(
    tmp_path: Path,
) -> None:
    plan = small_plan(tmp_path, training={"save_every": 2})
    run(plan, tmp_path / "run", stop_after=4)
    newest = tmp_path / "run/checkpoints/step-00000004/model.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(UserWarning, match="resuming from step-00000002"):
        resumed = run(plan, tmp_path / "run", resume="auto")
    assert resumed.trained == 6
    assert same(weights(resumed.model), weights(run(plan, tmp_path / "whole").model))


def test_the_record_says_what_ran(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, training={"steps": 1})
    run(plan, tmp_path / "run")
    (entry,) = _records(tmp_path / "run")
    assert entry["ran"]["launches"]["up:loop"] == 2 * (
        2 + 1 + 1
    )  # layers · (held-out, step, again)
    assert [layer["kernel"] for layer in entry["ran"]["attention"]] == ["math", "math"]
    assert entry["differences"] == []


def test_a_run_whose_kernels_were_not_the_planned_ones_fails(tmp_path: Path) -> None:
    class Swapped(_Sequences):
        def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
            launches["up:grouped_mm"] += 1  # as if an op had chosen something else
            return super().sequence(position)

    plan = small_plan(tmp_path, training={"steps": 1})
    with pytest.raises(RunError, match="up:grouped_mm ran unplanned"):
        run(plan, tmp_path / "run", data=Swapped())
    (entry,) = _records(tmp_path / "run")
    assert entry["differences"] == ["up:grouped_mm ran unplanned"]


def test_a_plan_for_a_gpu_is_refused_without_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = small_plan(tmp_path)
    execution = plan.execution.model_copy(update={"device": "cuda"})
    target = plan.target.model_copy(update={"arch": "sm90", "name": "h200"})
    foreign = plan.model_copy(update={"execution": execution, "target": target})
    with pytest.raises(DeviceError, match=r"build is for h200 \(sm90\), but torch sees no GPU"):
        run(foreign, tmp_path / "run")
    with pytest.raises(DeviceError, match="not for cpu"):
        run(foreign, tmp_path / "run", device="cpu")
    with pytest.raises(DeviceError, match="not for cuda"):
        run(plan, tmp_path / "run", device="cuda")


def test_a_spec_without_training_or_data_is_refused(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    bare = plan.spec.model_copy(update={"data": None})
    with pytest.raises(InputError, match="no data section"):
        run(plan.model_copy(update={"spec": bare}), tmp_path / "run")
    serving = plan.spec.model_copy(update={"training": None})
    with pytest.raises(InputError, match="no training section"):
        run(plan.model_copy(update={"spec": serving}), tmp_path / "run")


class _Own(nn.Module):
    """A module that is not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.drop = nn.Dropout(0.3)

    @property
    def head_weight(self) -> Tensor:
        return self.embed.weight

    def hidden(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        return self.drop(self.embed(tokens_BT)), torch.zeros(())


def test_a_users_module_trains_and_resumes_with_its_dropout(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)

    def own() -> _Own:
        torch.manual_seed(8)
        return _Own()

    whole = run(plan, tmp_path / "whole", model=own())
    run(plan, tmp_path / "parts", model=own(), stop_after=5)
    resumed = run(plan, tmp_path / "parts", model=own(), resume="auto")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert same(weights(resumed.model), weights(whole.model))
    with pytest.raises(InputError, match="Linear has no hidden"):
        run(plan, tmp_path / "other", model=nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        (lambda x_BTD: x_BTD, "a tuple of two tensors, .* not Tensor"),
        (lambda x_BTD: (x_BTD, 0.0), "a tuple of two tensors"),
        (lambda x_BTD: (x_BTD, torch.zeros(2)), r"auxiliary loss of shape \[2\]"),
        (lambda x_BTD: (x_BTD[:, 1:], torch.zeros(())), r"tokens \[2, 16\] returned \[2, 15, 8\]"),
        (lambda x_BTD: (x_BTD[..., 1:], torch.zeros(())), r"\[256, 8\]; .* that of hidden, 7"),
    ],
)
def test_a_users_module_that_returns_something_else_is_told_what(
    tmp_path: Path, hidden: Callable[[Tensor], object], message: str
) -> None:
    class Wrong(_Own):
        def hidden(self, tokens_BT: Tensor) -> Any:
            return hidden(self.embed(tokens_BT))

    with pytest.raises(InputError, match=message):
        run(small_plan(tmp_path), tmp_path / "run", model=Wrong())


def test_a_head_smaller_than_the_vocabulary_and_a_frozen_module_are_refused(tmp_path: Path) -> None:
    small = _Own()
    small.embed = nn.Embedding(255, 8)
    plan = small_plan(tmp_path)
    with pytest.raises(InputError, match=r"head_weight is \[255, 8\]; .* model.vocab, 256"):
        run(plan, tmp_path / "small", model=small)
    with pytest.raises(InputError, match="_Own has no parameter that requires a gradient"):
        run(plan, tmp_path / "frozen", model=_Own().requires_grad_(False))


class _Counting:
    """A user's data: lists and tensors serve as well as arrays."""

    identity = "counting"

    def __init__(self, *, held: int, label: int = 0, type_: Any = list) -> None:
        self.held_out_count, self.label, self.type = held, label, type_

    def sequence(self, position: int) -> tuple[Any, Any]:
        ids = [(position + token) % 256 for token in range(17)]
        return self.type(ids[:-1]), self.type(ids[1:])

    def held_out(self, index: int) -> tuple[Any, Any]:
        tokens, labels = self.sequence(index)
        return tokens, self.type([self.label] * 16) if self.label else labels


def test_a_users_data_trains_and_may_hold_nothing_out(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    kinds = {"lists": list, "tensors": torch.tensor, "arrays": np.array}
    results = {
        name: run(plan, tmp_path / name, data=_Counting(held=3, type_=kind))
        for name, kind in kinds.items()
    }
    assert len({result.held_out for result in results.values()}) == 1
    nothing = run(plan, tmp_path / "none", data=_Counting(held=0))
    ignored = run(plan, tmp_path / "ignored", data=_Counting(held=2, label=IGNORE))
    for result in (nothing, ignored):
        assert result.held_out is None
        assert same(weights(result.model), weights(results["lists"].model))


def test_what_is_not_training_data_is_refused(tmp_path: Path) -> None:
    plan = small_plan(tmp_path)
    with pytest.raises(DataError, match="list has no identity, held_out_count, sequence, held_out"):
        run(plan, tmp_path / "list", data=[])
    halves = _Counting(held=1, type_=lambda ids: np.array(ids) + 0.5)
    with pytest.raises(DataError, match="tokens of float64 and labels of float64"):
        run(plan, tmp_path / "floats", data=halves)
    alone = _Counting(held=1)
    alone.sequence = lambda position: np.arange(17)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="training 0 sequence is no pair of tokens and labels"):
        run(plan, tmp_path / "alone", data=alone)


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("identity", None, "identity is None; it must be a text"),
        ("identity", ("shard", 3), "it must be a text"),
        ("held_out_count", 1.5, "held_out_count is 1.5; it must be a whole number"),
        ("held_out_count", -1, "held_out_count is -1; it must be a whole number"),
    ],
)
def test_data_whose_checkpoints_could_not_be_read_back_are_refused(
    tmp_path: Path, member: str, value: object, message: str
) -> None:
    data = _Counting(held=1)
    setattr(data, member, value)
    with pytest.raises(DataError, match=message):
        run(small_plan(tmp_path), tmp_path / "run", data=data)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(("warmup", "steps"), [(4, 4), (9, 4), (0, 1)])
def test_short_runs_with_long_warm_up_finish(tmp_path: Path, warmup: int, steps: int) -> None:
    training = {"steps": steps, "optimizer": {"lr": 1e-3, "warmup_steps": warmup}}
    result = run(small_plan(tmp_path, training=training), tmp_path / "run")
    assert result.steps_done == steps
    assert all(line["lr"] > 0 for line in lines(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler trips over torch's own warnings
def test_a_compiled_run_equals_the_plain_one(tmp_path: Path) -> None:
    results = []
    for compiled in (False, True):
        training = {"compile": compiled, "checkpoint_every": 2, "steps": 3}
        plan = small_plan(tmp_path, training=training)
        result = run(plan, tmp_path / str(compiled))
        assert not any("_orig_mod" in name for name, _ in result.model.named_parameters())
        results.append(result)
    for (name, plain), compiled in zip(
        results[0].model.named_parameters(), results[1].model.parameters(), strict=True
    ):
        assert_close(compiled, plain, torch.bfloat16, name=name)  # Adam divides small by small
    plain_lines, compiled_lines = lines(tmp_path / "False"), lines(tmp_path / "True")
    for a, b in zip(plain_lines, compiled_lines, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
