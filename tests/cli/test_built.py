"""Reading a build directory back: what lies around it must not decide about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gptoss_builder.cli.build import main as build
from gptoss_builder.cli.built import read_build
from gptoss_builder.cli.train import main as train
from gptoss_builder.errors import ArtifactError

SPECS = Path(__file__).parents[2] / "specs"
TEXT = "the quick brown fox\n" * 400


def tiny_spec(folder: Path, **changes: object) -> Path:
    """A spec of one step, with its data `text` beside it."""
    values = yaml.safe_load((SPECS / "tiny.yaml").read_text(encoding="utf-8"))
    values["model"].update(layers=2, d_model=32)
    values["training"].update(steps=1, context=32, micro_batch=1, eval_tokens=32)
    values["training"]["optimizer"]["warmup_steps"] = 0
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(values | {"inference": None} | changes), encoding="utf-8")
    return path


def test_a_build_is_judged_without_the_data_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "more"):
        Path(name).write_text(TEXT, encoding="utf-8")
    suppress = [{"rule": "TN022", "reason": "repeated on purpose"}]
    spec = tiny_spec(tmp_path, data={"path": "text"}, suppress=suppress)
    values = yaml.safe_load(spec.read_text(encoding="utf-8"))
    values["training"]["steps"] = 10_000
    spec.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert build([str(spec), "--out", "out"]) == 0
    Path("text").write_text("short", encoding="utf-8")
    assert train(["out", "--sample", "0"]) == 2
    told = capsys.readouterr().err
    assert "one sequence of training.context 32 needs 33" in told
    assert "mend the spec" not in told
    read_build(Path("out"))
    Path("text").write_text(TEXT * 400, encoding="utf-8")  # more than the suppression was for
    read_build(Path("out"))
    more = ["--data", "more", "--sample", "0", "--stop-after", "1"]
    assert train(["out", *more]) == 0


def test_a_suppression_for_the_specs_own_card_holds_in_a_build_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((SPECS / "gpt_oss_smoke.yaml").read_text(encoding="utf-8"))
    values["model"]["moe"]["dispatch"] = "triton_grouped"
    values["training"] |= {"precision": "fp32", "micro_batch": 1}
    values["target"] = {"gpu": "t4"}
    values["kernel"] = {
        "block_t": 64, "block_k": 32, "block_n": 64, "num_warps": 4, "num_stages": 2,
    }  # fmt: skip
    rules = ("KL007", "MO008")
    values["suppress"] = [{"rule": rule, "reason": "as it was measured"} for rule in rules]
    Path("spec.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    for target in ("t4", "a100-80gb"):
        assert build(["spec.yaml", "--target", target, "--no-compile", "--out", "out"]) == 0
        assert read_build(Path("out")).target.name == target


def test_relative_data_that_are_missed_say_from_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text(TEXT, encoding="utf-8")
    assert build([str(tiny_spec(tmp_path, data={"path": "text"})), "--out", "out"]) == 0
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert train(["../out", "--sample", "0"]) == 2
    assert f"data.path text is not there in {tmp_path / 'deeper'}; " in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_line_ends_and_layout_of_a_copied_build_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = str(SPECS / "gpt_oss_lite.yaml")
    assert build([spec, "--target", "h200", "--no-compile", "--out", "out"]) == 0
    for path in Path("out").glob("*.*"):
        path.write_bytes(path.read_text(encoding="utf-8").replace("\n", ends).encode())
    launch = json.loads(Path("out/launch.json").read_text(encoding="utf-8"))
    Path("out/launch.json").write_text(json.dumps(launch, sort_keys=True), encoding="utf-8")
    assert read_build(Path("out")).launch is not None
    launch["num_warps"] *= 2
    Path("out/launch.json").write_text(json.dumps(launch), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"launch.json is not the launch configuration"):
        read_build(Path("out"))


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Build gpt_oss_lite into `out`; returns what sets a dotted field of its plan.json."""
    monkeypatch.chdir(tmp_path)
    spec = str(SPECS / "gpt_oss_lite.yaml")
    assert build([spec, "--target", "h200", "--no-compile", "--out", "out"]) == 0

    def change(field: str, value: object) -> None:
        plan = json.loads(Path("out/plan.json").read_text(encoding="utf-8"))
        *parents, last = field.split(".")
        place = plan
        for parent in parents:
            place = place[parent]
        place[last] = value
        Path("out/plan.json").write_text(json.dumps(plan), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost.step_seconds", 1e9),
        ("memory.training.total_bytes", 1),
        ("target.memory_bytes", 2**50),
    ],
)
def test_estimates_are_of_the_version_that_reads_a_build(
    edit: Callable[[str, object], None], field: str, value: float
) -> None:
    """So a build outlives a better estimate, and an estimate that was edited lets nothing pass."""
    before = read_build(Path("out"))
    edit(field, value)
    assert read_build(Path("out")) == before
    assert before.kernel_build == "not_compiled"


@pytest.mark.parametrize(
    ("field", "value"), [("execution.backward", "save"), ("parameters.total", 5)]
)
def test_a_decision_that_was_edited_is_refused_by_name(
    edit: Callable[[str, object], None], field: str, value: object
) -> None:
    edit(field, value)
    with pytest.raises(ArtifactError, match=f"{field} is {value}") as caught:
        read_build(Path("out"))
    assert len(str(caught.value)) < 400
