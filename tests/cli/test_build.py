"""gptoss-build: what it writes, and what it refuses."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gptoss_builder.build_directory import with_data_paths_from_here
from gptoss_builder.cli import check
from gptoss_builder.cli.build import main
from gptoss_builder.plan.aot import Compiled, CompileReport, CompileRequest
from gptoss_builder.plan.artifact import read_plan
from gptoss_builder.spec.schema import DataSpec

SPECS = Path(__file__).parents[2] / "specs"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs triton, which is for Linux only"
)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def spec_file(folder: Path, **changes: object) -> Path:
    values = yaml.safe_load((SPECS / "tiny.yaml").read_text(encoding="utf-8"))
    values.update(changes)
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_the_502m_model_builds_for_sm80_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(SPECS / "gpt_oss_lite.yaml"), "--target", "sm80", "--no-compile"]) == 0
    plan = read_plan(tmp_path / "build" / "gpt_oss_lite-a100-80gb" / "plan.json")
    assert plan.parameters.total == 501_836_640
    assert plan.parameters.active == 247_032_672
    assert plan.target.arch == "sm80"
    assert plan.kernel_build == "not_compiled"
    assert "501,836,640" in capsys.readouterr().out


def test_the_summary_has_theorys_heuristic_beside_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(SPECS / "gpt_oss_lite.yaml"), "--no-compile"]) == 0
    out = capsys.readouterr().out
    assert "  heuristic   17.17 GiB by theory.txt, for comparison" in out
    assert "largest at: loss" in out


def test_periods_are_a_table_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(SPECS / "gpt_oss_lite.yaml"), "--periods"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "save" in line or "recompute" in line]
    periods = {(row[0], row[1]) for row in rows[:14]}
    assert periods == {
        (every, backward)
        for every in ("0", "1", "2", "3", "4", "6", "12")
        for backward in ("save", "recompute")
    }
    assert [row[0] for row in rows if row[-1] == "spec"] == ["3"]
    assert "fastest that fits: checkpoint_every 0, backward save" in out
    assert "√12 = 3.46" in out
    assert not list(tmp_path.iterdir())


def test_cost_is_a_table_over_cards_with_its_assumptions_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = str(SPECS / "gpt_oss_lite.yaml")
    assert main([spec, "--target", "h200", "--cost", "--price", "2.5"]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["h200"][5:] == ["rates", "measured", "on", "it"]
    assert lines["a100-80gb"][5:] == ["its", "rates,", "at", "an", "H200's", "efficiency"]
    hours, price = (float(lines["h200"][column].replace(",", "")) for column in (3, 4))
    assert price == pytest.approx(2.5 * hours, abs=1)
    assert "TFLOP/s on an H200" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["h200", "a100-80gb"])
def test_the_summary_calls_the_speed_a_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    out = str(tmp_path / "out")
    spec = str(SPECS / "gpt_oss_lite.yaml")
    assert main([spec, "--target", target, "--no-compile", "--out", out]) == 0
    (speed,) = (line for line in capsys.readouterr().out.splitlines() if "tokens/s" in line)
    assert "predicted from" in speed
    assert ("measured on it" in speed) == (target == "h200")


@pytest.mark.parametrize("table", ["--cost", "--periods", "--price=2"])
def test_a_spec_without_training_has_no_table_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    values = yaml.safe_load((SPECS / "tiny.yaml").read_text(encoding="utf-8"))
    del values["training"], values["data"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main([str(tmp_path / "spec.yaml"), table]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "has no training section" in shown.err


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (["SPEC", "--cost", "--out", "out"], "--out"),
        (["SPEC", "--periods", "--no-compile"], "--no-compile"),
        (["SPEC", "--price", "0", "--out", "out"], "--out"),
        (["--example", "tiny", "SPEC"], "SPEC"),
        (["--example", "tiny", "--cost"], "--cost"),
        (["--example", "tiny", "--price", "0"], "--price"),
        (["--example", "tiny", "--target", "h200"], "--target"),
        (["--example", "tiny", "--out", "out"], "--out"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], left_out: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].endswith(f"leave out {left_out}")
    assert shown.out == ""


def test_a_refused_spec_is_reported_as_the_check_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(spec_file(tmp_path, name=""))
    assert main([spec]) == 2
    told = capsys.readouterr().err
    assert check.main([spec]) == 1
    assert told == capsys.readouterr().out
    assert "memory and plan were not judged" in told


@pytest.mark.parametrize("price", ["x", "-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(SPECS / "gpt_oss_lite.yaml"), "--price", price])
    assert left.value.code == 2
    assert "no price an hour" in capsys.readouterr().err


def test_periods_of_a_spec_that_does_not_fit_say_which_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SPECS / "gpt_oss_lite.yaml").read_text(encoding="utf-8")
    path = tmp_path / "big.yaml"
    path.write_text(text.replace("micro_batch: 8", "micro_batch: 64"), encoding="utf-8")
    assert main([str(path), "--periods", "--target", "a100-40gb"]) == 2
    out = capsys.readouterr().out
    refused = [line for line in out.splitlines() if line.endswith("does not fit  ← the spec")]
    assert [line.split()[:2] for line in refused] == [["3", "recompute"]]
    assert out.splitlines()[-1] == "fastest that fits: checkpoint_every 2, backward recompute"


def test_the_same_spec_and_target_give_the_same_bytes(tmp_path: Path) -> None:
    spec = str(SPECS / "gpt_oss_lite.yaml")
    first, second = tmp_path / "first", tmp_path / "deeper" / "second"
    assert main([spec, "--target", "h200", "--no-compile", "--out", str(first)]) == 0
    assert main([spec, "--target", "h200", "--no-compile", "--out", str(second)]) == 0
    assert contents(first) == contents(second)
    assert {"spec.yaml", "plan.json", "launch.json"} <= contents(first).keys()


@needs_triton
def test_the_kernels_of_the_plan_are_compiled_into_the_build(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([str(SPECS / "gpt_oss_lite.yaml"), "--target", "h200", "--out", str(out)]) == 0
    assert read_plan(out / "plan.json").kernel_build == "compiled"
    forward = json.loads((out / "kernels" / "w1w3-h.json").read_text(encoding="utf-8"))
    assert forward["request"]["arch"] == "sm90"
    assert forward["spill_bytes"] == 0
    assert forward["instructions"]["HGMMA"] > 0
    cubin = (out / "kernels" / "w1w3-h.cubin").read_bytes()
    assert cubin.startswith(b"\x7fELF")
    assert hashlib.sha256(cubin).hexdigest() == forward["cubin_sha256"]
    assert (out / "kernels" / "w1w3-gate_up.cubin").exists()
    assert "second" not in json.dumps(forward)


def test_without_triton_the_way_out_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else real(name)
    )
    out = tmp_path / "out"
    arguments = [str(SPECS / "gpt_oss_lite.yaml"), "--target", "sm80", "--out", str(out)]
    assert main(arguments) == 2
    assert "--no-compile" in capsys.readouterr().err
    assert not out.exists()
    assert main([*arguments, "--no-compile"]) == 0


def test_a_torch_that_does_not_load_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise OSError("libcublas.so.12: cannot open shared object file")

    monkeypatch.setattr("gptoss_builder.cli.build.require_packages", broken)
    assert main([str(SPECS / "tiny.yaml"), "--out", str(tmp_path / "out")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("was not written: libcublas.so.12: cannot open shared object file")


def test_a_kernel_that_spills_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spilling(requests: Sequence[CompileRequest]) -> list[Compiled]:
        return [
            Compiled(CompileReport(request=request, spill_bytes=88, shared_memory_limit=1), b"")
            for request in requests
        ]

    monkeypatch.setattr("gptoss_builder.cli.build.compile_kernels", spilling)
    out = tmp_path / "out"
    assert main([str(SPECS / "gpt_oss_lite.yaml"), "--target", "sm80", "--out", str(out)]) == 2
    assert "spills 88 bytes" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", ["tiny", "gpt_oss_smoke", "gpt_oss_lite"])
def test_an_example_is_the_shipped_spec(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--example", name]) == 0
    printed, shipped = capsys.readouterr().out, (SPECS / f"{name}.yaml").read_text(encoding="utf-8")
    first, rest = printed.split("\n", 1)
    assert first == "# yaml-language-server: $schema=spec.schema.json"  # gptoss-check --schema
    assert rest == shipped.split("\n", 1)[1]


def test_an_unknown_example_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--example", "huge"]) == 2
    assert "gpt_oss_smoke" in capsys.readouterr().err


@pytest.mark.parametrize("stranger", ["notes.txt", "plan.json.bak"])
def test_a_folder_that_is_not_a_build_is_left_alone(
    tmp_path: Path, stranger: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / stranger).write_text("mine", encoding="utf-8")
    assert main([str(SPECS / "tiny.yaml"), "--out", str(out)]) == 2
    assert contents(out) == {stranger: b"mine"}
    assert stranger in capsys.readouterr().err


def test_data_paths_start_at_the_specs_folder_and_in_the_build_at_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for path, tokenizer, expected in (
        ("../text", "bytes", ("../text", "bytes")),
        ("text", "bytes", ("../specs/text", "bytes")),
        (str(tmp_path / "text"), "bytes", (str(tmp_path / "text"), "bytes")),
    ):
        spec = spec_file(tmp_path / "specs", data={"path": path, "tokenizer": tokenizer})
        assert main([os.path.relpath(spec), "--out", "out"]) == 0
        data = read_plan(Path("out/plan.json")).spec.data
        assert data is not None
        assert (data.path, data.tokenizer) == expected
        assert yaml.safe_load(Path("out/spec.yaml").read_text())["data"]["path"] == expected[0]
    data = DataSpec(path="text", tokenizer="../t.json")
    moved = with_data_paths_from_here(
        read_plan(Path("out/plan.json")).spec.model_copy(update={"data": data}), Path("../specs")
    )
    assert moved.data == DataSpec(path="../specs/text", tokenizer="../t.json")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert main([str(SPECS / "tiny.yaml"), "--out", str(tmp_path / "link")]) == 2
    assert not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_folder_that_its_path_does_not_name_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    place = tmp_path / "empty" / "inner"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    assert main([str(SPECS / "tiny.yaml"), "--out", out]) == 2
    assert "cannot be replaced as a whole" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty", place]


def test_a_terminal_that_knows_ascii_only_shows_the_summary(tmp_path: Path) -> None:
    spec, out = str(SPECS / "gpt_oss_lite.yaml"), str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "gptoss_builder.cli.build", spec, "--out", out, "--no-compile"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"wrote " in done.stdout


def test_a_bad_spec_is_reported_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_file(tmp_path, seed=True, naem="x")
    assert main([str(spec)]) == 2
    shown = capsys.readouterr().err
    assert "seed" in shown
    assert "naem" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.yaml"], "missing.yaml"),
        ([str(SPECS / "tiny.yaml"), "--target", "h20"], "h200"),
        ([str(SPECS)], "specs"),
    ],
)
def test_wrong_arguments_exit_2_with_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_a_folder_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([str(SPECS / "tiny.yaml"), "--out", str(tmp_path / "file" / "out")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("gptoss-build: ")
    assert "--out" in last


def test_a_full_disk_leaves_the_older_build_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([str(SPECS / "tiny.yaml"), "--out", str(out)]) == 0
    before = contents(out)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("gptoss_builder.build_directory._write", full)
    assert main([str(SPECS / "tiny.yaml"), "--out", str(out)]) == 1
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "No space left" in capsys.readouterr().err.splitlines()[-1]


def test_the_plan_is_printed_without_torch_and_nothing_is_written(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gptoss_builder.cli.build import main\n"
        f"code = main([{str(SPECS / 'gpt_oss_lite.yaml')!r}, '--target', 'h200', '--plan'])\n"
        "sys.exit(code or 10 * bool({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "parameters  501,836,640, 247,032,672 active" in done.stdout
    assert "wrote" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_not_there_are_named_after_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((SPECS / "tiny.yaml").read_text(encoding="utf-8"))
    values["data"] = {"path": "text", "tokenizer": "bytes"}
    Path("spec.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main(["spec.yaml", "--out", "out"]) == 0
    assert "not here yet, so not judged: data.path text; see gptoss-prepare" in (
        capsys.readouterr().out
    )
    Path("text").write_text("the quick brown fox\n" * 40_000, encoding="utf-8")
    main(["spec.yaml", "--out", "out"])
    assert "not here yet" not in capsys.readouterr().out
