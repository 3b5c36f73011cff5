"""gptoss-generate and load_model: what a trained model is for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import gptoss_builder as gb
from gptoss_builder.build_directory import write_build
from gptoss_builder.cli import generate as cli
from gptoss_builder.cli import train
from gptoss_builder.errors import ArtifactError, DeviceError, TargetError
from gptoss_builder.generate import Sampling, generate
from gptoss_builder.tokenizer import ByteTokenizer
from tests.train.runs import small_plan


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/small` of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plan = small_plan(folder, training={"steps": 2, "save_every": 1, "optimizer": {"lr": 1e-2}})
        write_build(plan, Path("build"), {})
        assert train.main(["build", "--run", "runs/small", "--sample", "0"]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of one's own in the current directory."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return "runs/small"


def said(capsys, *arguments: str) -> str:
    assert cli.main([*arguments]) == 0
    return capsys.readouterr().out


def test_a_loaded_model_has_the_weights_of_the_newest_checkpoint(run: str) -> None:
    model = gb.load_model(run)
    newest = Path(run) / "checkpoints" / "step-00000002"
    earlier = Path(run) / "checkpoints" / "step-00000001"
    for name, parameter in gb.load_model(newest).named_parameters():
        assert parameter.equal(model.get_parameter(name)), name
    before = gb.load_model(earlier)
    assert any(not p.equal(before.get_parameter(name)) for name, p in model.named_parameters())


def test_text_is_what_the_model_draws(run: str, capsys) -> None:
    text = said(capsys, run, "--prompt", "def", "--tokens", "9", "--temperature", "0")
    tokenizer, model = ByteTokenizer(), gb.load_model(run)
    ids = torch.tensor([[tokenizer.end, *tokenizer.encode("def")]])
    drawn = generate(model, ids, 9, Sampling(temperature=0))[0, ids.shape[1] :]
    # one token at a time, the whole sequence anew each time, without a cache
    for _ in range(9):
        with torch.no_grad():
            hidden, _ = model.hidden(ids)
            logits = hidden[:, -1].float() @ model.head_weight.float().T
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert drawn.tolist() == ids[0, -9:].tolist()
    assert text.startswith("def")
    shown = tokenizer.decode(drawn.tolist())
    if all(character.isprintable() for character in shown):
        assert text == f"def{shown}\n"


def test_the_seed_decides(run: str, capsys) -> None:
    def text(seed: int) -> str:
        return said(capsys, run, "--tokens", "9", "--temperature", "2", "--seed", str(seed))

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is no checkpoint"),
        (["runs/small", "--tokens", "999"], "the context has room for "),
        (["runs/small", "--prompt", "a" * 99], "fills the whole context"),
        (["runs/small", "--temperature", "-1"], "temperature is -1.0"),
        (["runs/small", "--top-p", "0"], "top_p is 0.0"),
        (["runs/small", "--seed", "-1"], "seed is -1"),
        (["runs/small", "--seed", str(2**64)], f"seed is {2**64}"),
        (["runs/small", "--tokenizer", "t.json"], "tokenizer t.json is not there"),
        (["runs/small", "--target", "h200"], "no GPU is available here"),
        (["runs/small", "--dispatch", "grouped_mm"], "and the target is cpu"),
        (["runs/small", "--device", "tpu?"], "tpu? is not a device"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    run: str, capsys, arguments: list[str], message: str
) -> None:
    if torch.cuda.is_available() and "h200" in arguments:
        pytest.skip("there is a GPU")
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("gptoss-generate: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ["--prompt", "\udcff"],
        ["--tokenizer", "\udcff"],
        ["--tokenizer", ""],
        ["--tokens", "0"],
        ["--top-k", "x"],
        ["--dispatch", "no"],
    ],
)
def test_wrong_usage_is_exit_code_2(run: str, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([run, *wrong])
    assert caught.value.code == 2


def test_a_damaged_checkpoint_is_refused_and_left_alone(run: str) -> None:
    file = Path(run) / "checkpoints" / "step-00000002" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="damaged"):
        gb.load_model(run)
    assert file.exists()
    gb.load_model(file.parents[1] / "step-00000001")


def test_another_dispatch_gives_the_same_model_and_what_cannot_run_is_refused(run: str) -> None:
    model = gb.load_model(run, dispatch="stacked")
    assert model.plan.execution.dispatch == "stacked"
    with pytest.raises((TargetError, gb.SpecError)):
        gb.load_model(run, dispatch="triton_grouped")
    with pytest.raises(DeviceError):
        gb.load_model(run, device="no such device")
