"""Checkpoints: whole or not at all, exact, and never unpickled."""

from __future__ import annotations

import json
import pickle
import random
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gptoss_builder.errors import ArtifactError, RunError
from gptoss_builder.spec.schema import OptimizerSpec
from gptoss_builder.train import checkpoint, optim, rng

CPU = torch.device("cpu")


class _Tied(nn.Module):
    def __init__(self, seed: int = 0, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(5, width))
        self.head = self.embedding
        self.block = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) @ self.head.T


def _trained(steps: int = 2, seed: int = 0) -> tuple[_Tied, torch.optim.AdamW]:
    model = _Tied(seed)
    optimizer = optim.adamw(model, OptimizerSpec(lr=0.1))
    for step in range(steps):
        model(torch.full((2, 3), float(step + 1))).square().sum().backward()
        norm = optim.gradient_norm(optimizer)
        optim.step(optimizer, lr=0.1, norm=norm, grad_clip=1.0, skip=None)
    return model, optimizer


def _state(step: int) -> dict[str, object]:
    return {
        "step": step,
        "sequences": 3 * step,
        "consecutive_skips": 0,
        "data": "id",
        "spec": {},
        "python_rng": rng.python_state(),
    }


def _save(directory: Path, step: int, *, keep: int = 9, seed: int = 0) -> Path:
    model, optimizer = _trained(seed=seed)
    directory.mkdir(exist_ok=True)
    return checkpoint.save(
        directory,
        model=model,
        optimizer=optimizer,
        rng=rng.tensors(CPU),
        state=_state(step),
        keep=keep,
    )


def test_every_bit_of_weights_and_optimizer_comes_back(tmp_path: Path) -> None:
    path = _save(tmp_path, 7)
    model, optimizer = _trained()
    fresh = _Tied(seed=5)
    fresh_optimizer = optim.adamw(fresh, OptimizerSpec(lr=0.1))
    loaded = checkpoint.load(path)
    checkpoint.restore_model(loaded, fresh)
    checkpoint.restore_optimizer(loaded, fresh, fresh_optimizer)
    assert loaded.step == 7
    assert loaded.state["sequences"] == 21
    for ours, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for kind in ("step", "exp_avg", "exp_avg_sq"):
            saved = optimizer.state[theirs][kind]
            assert saved.any()
            assert saved.dtype == fresh_optimizer.state[ours][kind].dtype == torch.float32
            assert torch.equal(fresh_optimizer.state[ours][kind], saved)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    assert sorted(load_file(path / "model.safetensors")) == [
        "block.bias",
        "block.weight",
        "embedding",
    ]
    fresh = _Tied(seed=5)
    checkpoint.restore_model(checkpoint.load(path), fresh)
    assert fresh.head.data_ptr() == fresh.embedding.data_ptr()


def test_a_compiled_model_has_the_names_of_the_plain_one(tmp_path: Path) -> None:
    compiled = nn.Module()
    compiled.block = torch.compile(_Tied(), backend="eager")
    assert any("_orig_mod" in name for name, _ in compiled.named_parameters())
    assert sorted(checkpoint.parameters(compiled)) == [
        "block.block.bias",
        "block.block.weight",
        "block.embedding",
    ]
    path = _save(tmp_path, 1)
    whole = torch.compile(_Tied(seed=5), backend="eager")
    checkpoint.restore_model(checkpoint.load(path), whole)
    assert torch.equal(whole.block.weight, _trained()[0].block.weight)


def test_a_transposed_view_is_saved_with_its_values(tmp_path: Path) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.arange(6.0).view(2, 3).T)
    optimizer = optim.adamw(model, OptimizerSpec(lr=0.1))
    path = checkpoint.save(
        tmp_path, model=model, optimizer=optimizer, rng={}, state=_state(1), keep=1
    )
    saved = load_file(path / "model.safetensors")["weight"]
    assert torch.equal(saved, torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]))


@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape", "dtype"])
def test_weights_of_another_model_are_refused_and_nothing_is_loaded(
    tmp_path: Path, fault: str
) -> None:
    loaded = checkpoint.load(_save(tmp_path, 1))
    if fault == "missing":
        del loaded.model["block.bias"]
    elif fault == "unexpected":
        loaded.model["_orig_mod.block.bias"] = torch.zeros(3)
    elif fault == "shape":
        loaded.model["block.bias"] = torch.zeros(4)
    else:
        loaded.model["block.bias"] = torch.zeros(3, dtype=torch.bfloat16)
    fresh = _Tied(seed=5)
    before = fresh.embedding.detach().clone()
    with pytest.raises(ArtifactError, match=r"block\.bias"):
        checkpoint.restore_model(loaded, fresh)
    assert torch.equal(fresh.embedding, before)


def test_the_highest_step_wins_and_not_the_last_name(tmp_path: Path) -> None:
    for step in (200, 1000):
        path = _save(tmp_path, step)
        path.rename(tmp_path / f"step-{step}")  # by name, 200 comes after 1000
    (tmp_path / "step_old").mkdir()
    (tmp_path / "step-old").mkdir()
    assert [step for step, _ in checkpoint.found(tmp_path)] == [1000, 200]
    assert checkpoint.load_newest(tmp_path).step == 1000


def test_keep_leaves_the_newest_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "step-old").mkdir()
    for step in (5, 20, 100):
        _save(tmp_path, step, keep=2)
    assert [step for step, _ in checkpoint.found(tmp_path)] == [100, 20]
    _save(tmp_path, 101, keep=1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000101", "step-old"]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "truncated": _truncate,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "one bit": _flip,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "file",
    [
        "model.safetensors",
        "optimizer.safetensors",
        "rng.safetensors",
        "state.json",
        "manifest.json",
    ],
)
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, damage: str, file: str
) -> None:
    _save(tmp_path, 10, seed=1)
    newest = _save(tmp_path, 20)
    DAMAGE[damage](newest / file)
    with pytest.raises(ArtifactError, match=r"step-00000020"):
        checkpoint.load(newest)
    with pytest.warns(UserWarning, match=r"step-00000020.*resuming from step-00000010"):
        loaded = checkpoint.load_newest(tmp_path)
    assert loaded.step == 10
    assert not newest.exists()
    assert (tmp_path / "step-00000020.broken").is_dir()


def test_no_complete_checkpoint_is_an_error_and_none_at_all_is_not(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    assert checkpoint.load_newest(tmp_path / "nowhere") is None
    _truncate(_save(tmp_path, 10) / "model.safetensors")
    with pytest.raises(ArtifactError, match="no checkpoint is complete"):
        checkpoint.load_newest(tmp_path)


class _Bomb:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (open, (self.marker, "w"))


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"]
)
@pytest.mark.parametrize("pickler", [pickle.dump, torch.save])
def test_a_pickle_in_place_of_a_file_is_never_run(tmp_path: Path, file: str, pickler) -> None:
    path = _save(tmp_path, 10)
    marker = tmp_path / "marker"
    with (path / file).open("wb") as opened:
        pickler(_Bomb(str(marker)), opened)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][file] = checkpoint._fingerprint(path / file)  # a careful attacker
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=file.replace(".", r"\.") + "|is not safetensors"):
        checkpoint.load(path)
    assert not marker.exists()


def test_generators_draw_on_where_they_were(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    random.gauss(0, 1)  # leaves a second number behind, in Python and numpy alike
    np.random.randn()
    loaded = checkpoint.load(_save(tmp_path, 1))
    draws = []
    for _ in range(2):
        rng.restore(loaded.rng, loaded.state["python_rng"], CPU)
        draws.append((random.gauss(0, 1), random.random(), *np.random.randn(3), *torch.randn(3)))
        random.seed(9)
        np.random.seed(9)
        torch.manual_seed(9)
    assert draws[0] == draws[1]


def test_broken_generator_states_are_refused(tmp_path: Path) -> None:
    loaded = checkpoint.load(_save(tmp_path, 1))
    for states in ({}, loaded.rng | {"torch": torch.zeros(3, dtype=torch.uint8)}):
        with pytest.raises(ArtifactError, match="random states are not usable"):
            rng.restore(states, loaded.state["python_rng"], CPU)
    python = loaded.state["python_rng"]
    for words in ([], [-1] * 625, [2**70] * 625):
        with pytest.raises(ArtifactError, match="random states are not usable"):
            rng.restore(loaded.rng, python | {"words": words}, CPU)


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [300, 2000])  # in the first file, in a later one
def test_a_full_disk_leaves_the_previous_checkpoint_and_no_rubbish(
    tmp_path: Path, size: int
) -> None:
    _save(tmp_path, 10)
    with pytest.raises(RunError) as caught, _largest_file(size):
        _save(tmp_path, 20)
    assert "step-00000020 could not be written" in str(caught.value)
    assert "earlier checkpoints are intact" in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000010"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpoint.load_newest(tmp_path).step == 10


def test_a_checkpoint_of_a_step_that_is_there_already_replaces_it(tmp_path: Path) -> None:
    _save(tmp_path, 10, seed=1)
    path = _save(tmp_path, 10, seed=0)
    assert torch.equal(checkpoint.load(path).model["embedding"], _trained()[0].embedding)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_files_that_a_checkpoint_names_must_be_its_own(tmp_path: Path) -> None:
    path = _save(tmp_path, 10)
    save_file({"x": torch.zeros(1)}, tmp_path / "evil.safetensors")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../evil.safetensors"] = manifest["files"]["state.json"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"manifest\.json, \$\.files"):
        checkpoint.load(path)
