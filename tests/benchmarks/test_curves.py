"""Curves beside the spread of seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import curves

SMALL = "--target cpu --steps 7 --window 3 --context 16 --d-model 32 --layers 2 --micro-batch 2"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"def f{n}(x): return x + {n * n}\n" for n in range(99)))
    return file


def test_small_curves_are_trained_compared_and_written(text: Path, capsys) -> None:
    out = text.parent / "curves.json"
    code = curves.main([*SMALL.split(), "--data", str(text), "--seeds", "3", "--out", str(out)])
    made = json.loads(out.read_text())
    assert code == (0 if made["agree"] else 1)
    ours, theirs = made["curves"].values()
    assert list(made["curves"]) == ["stacked bf16", "stacked fp32"]
    assert [len(run) for run in (*ours, *theirs)] == [7] * 6
    assert len({tuple(run) for run in (*ours, *theirs)}) == 6  # no two runs are one
    for a, b in zip(ours, theirs, strict=True):
        assert a[0] == pytest.approx(b[0], abs=1e-2)  # from the same weights
    assert [row["step"] for row in made["rows"]] == [3, 6]
    assert "worst difference / spread" in capsys.readouterr().out


def _shifted(shift: float) -> curves.Curves:
    theirs = [[5 - 0.1 * step + 0.05 * seed for step in range(8)] for seed in range(4)]
    ours = [
        [loss + (shift if seed % 2 else -shift) for loss in run] for seed, run in enumerate(theirs)
    ]
    return {"ours": ours, "theirs": theirs}


def test_difference_and_spread_are_as_defined() -> None:
    rows = curves.compare(_shifted(0.01), 4)
    assert [row["step"] for row in rows] == [4, 8]
    for row, mean in zip(rows, (5 - 0.15 + 0.075, 5 - 0.55 + 0.075), strict=True):
        assert row["theirs"] == pytest.approx(mean)
        assert row["ours"] == pytest.approx(mean)  # shifts of either sign cancel in the mean
        assert row["difference"] == pytest.approx(0.01)
        assert row["spread"] == pytest.approx(0.05 * (5 / 3) ** 0.5)


@pytest.mark.parametrize(("shift", "agree"), [(0.0, True), (0.06, True), (0.07, False)])
def test_curves_agree_up_to_the_spread_of_seeds(shift: float, *, agree: bool) -> None:
    assert curves.agree(curves.compare(_shifted(shift), 4)) == agree


def test_one_window_or_one_nan_is_enough_to_disagree() -> None:
    for value in (5.5, float("nan")):
        spoilt = _shifted(0.0)
        spoilt["ours"][0][7] = value
        assert not curves.agree(curves.compare(spoilt, 2))


def test_steps_beyond_the_last_window_are_left_over() -> None:
    runs = [[1.0, 1.0, 1.0, 9.0], [2.0, 2.0, 2.0, 9.0]]
    (row,) = curves.compare({"ours": runs, "theirs": runs}, 3)
    assert row["theirs"] == 1.5


@pytest.mark.parametrize("name", ["seeds", "steps", "window", "context"])
def test_a_size_of_nothing_is_refused(name: str, text: Path, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        curves.main([*SMALL.split(), "--data", str(text), f"--{name}", "0"])
    assert left.value.code == 2
    assert f"--{name}: 0 is not a number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "2"], "give 3 seeds or more"),
        (["--window", "8"], "steps for one window or more"),
        (["--data", "nowhere"], "nowhere is not there"),
        (["--target", "voodoo"], "voodoo"),
        (["--tokenizer", "none.json"], "none.json is not there"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, text: Path, capsys) -> None:
    assert curves.main([*SMALL.split(), "--data", str(text), *arguments]) == 2
    assert message in capsys.readouterr().err
