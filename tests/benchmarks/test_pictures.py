"""Pages and pictures of the long run and of the curves."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.long_run_record import COLUMNS
from docs.pictures import chart, curves, long_run, records

GIB = 2**30
RECORDS = [
    (module, path)
    for module in (long_run, curves)
    for path in sorted(records.FOLDER.glob(module.PATTERN))
]
SVG = "{http://www.w3.org/2000/svg}"
FACTS = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "triton": "3.6.0"}


def _run(**changes: object) -> dict:
    return (
        FACTS
        | {
            "date": "2026-12-01",
            "spec": "gpt_oss_lite",
            "steps_planned": 70,
            "tokens_per_step": 32768,
            "planned_allocated_bytes": 17 * GIB,
            "planned_reserved_bytes": 18 * GIB,
            "starts": [1, 21],
            "parts": [
                {"steps": steps, "training_seconds": 480.0, "to_first_step_seconds": 40.0}
                | {"to_save_seconds": 12.5}
                for steps in ([0, 20], [20, 60])
            ],
            "tokens_per_second": [240000, 239000],
            "verdict": [{"what": "every loss finite", "found": "0 are not", "ok": True}],
            "held_out": [[40, 6.25, 7.5]],
            "columns": list(COLUMNS),
            "rows": [
                [20, 8.0, 9.5, 240000, 0.3, 16 * GIB, 17 * GIB],
                [40, 12.0, 7.0, 239000, 0.3, 16 * GIB, 17 * GIB],
                [60, 16.0, 4.5, 239000, 0.3, 16 * GIB, 17 * GIB],
            ],
        }
        | changes
    )


def _curves() -> dict:
    rows = [
        {"step": 20, "ours": 8.0, "theirs": 8.01, "difference": 0.02, "spread": 0.05},
        {"step": 40, "ours": 6.5, "theirs": 6.5, "difference": 0.01, "spread": 0.04},
    ]
    names = {"triton_grouped bf16": [], "stacked fp32": []}
    sizes = {"layers": 4, "window": 20, "seeds": 5}
    return FACTS | {"sizes": sizes, "agree": True, "rows": rows, "curves": names}


def _lines(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in ET.fromstring(svg).iter(f"{SVG}polyline")
    ]


def test_the_picture_of_a_run_has_loss_rate_memory_and_the_resume() -> None:
    svg = long_run.drawing(_run())
    texts = [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert texts.count("resumed at step 20") == 3
    assert {"Loss, nats a token", "Throughput, thousand tokens/s"} <= set(texts)
    assert "reserved, planned" in texts
    loss, rate, reserved, planned, *_ = _lines(svg)
    assert [x for x, _ in loss] == pytest.approx([383.0, 539.5, 696.0])
    assert loss[0][1] < loss[1][1] < loss[2][1]  # it falls, and y points down
    assert rate[0][1] < rate[1][1] == rate[2][1]
    assert reserved[0][1] > planned[0][1]
    mark = re.search(r'd="M([\d.]+) \d+V', svg)
    assert mark is not None
    assert float(mark[1]) == loss[0][0]


def test_a_loss_that_is_not_finite_is_a_gap_and_a_cpu_has_no_memory_panel() -> None:
    rows = [[*row[:5], None, None] for row in _run()["rows"]]
    svg = long_run.drawing(_run(rows=rows, held_out=[]))
    assert "memory" not in svg
    rows[0][2] = None
    assert len(_lines(long_run.drawing(_run(rows=rows, held_out=[])))[0]) == 2


def test_the_page_of_a_run_says_what_failed() -> None:
    text = long_run.page(_run(), "x-long-run")
    assert "## Every check passed" in text
    assert "60 of 70 steps, 2 million tokens" in text
    assert "| 2 | 20 … 60 | 239,000 | 8.00 | 40.0 | 12.5 |" in text
    assert "![Loss, throughput and memory over time](x-long-run.svg)" in text
    bad = _run(verdict=[{"what": "no stall", "found": "9 s", "ok": False}])
    text = long_run.page(bad, "x")
    assert "## NOT every check passed" in text
    assert "| no stall | 9 s | **no** |" in text


def test_the_picture_of_curves_has_both_and_the_spread() -> None:
    svg = curves.drawing(_curves())
    ET.fromstring(svg)
    theirs, ours, spread, difference = _lines(svg)
    assert theirs[0][1] < ours[0][1]  # ours is lower in the first window
    assert spread[0][1] < difference[0][1]
    (band,) = ET.fromstring(svg).iter(f"{SVG}polygon")
    ys = [float(pair.split(",")[1]) for pair in band.attrib["points"].split()]
    assert ys[0] < theirs[0][1] < ys[-1]


def test_no_curve_runs_into_the_lower_end_of_its_plot() -> None:
    made = _curves()
    made["rows"][1] |= {"ours": 5.9, "theirs": 6.02, "spread": 0.3}
    svg = curves.drawing(made)
    (band,) = ET.fromstring(svg).iter(f"{SVG}polygon")
    bottom = chart.TOP + chart.PLOT
    pairs = [pair.split(",") for pair in band.attrib["points"].split()]
    ys = [float(y) for _, y in pairs] + [y for line in _lines(svg)[:2] for _, y in line]
    assert max(ys) < bottom


def test_the_page_of_curves_has_every_window_and_the_verdict() -> None:
    text = curves.page(_curves(), "x-curves")
    assert "| 40 | 6.5000 | 6.5000 | 0.0100 | 0.0400 |" in text
    assert "The curves agree: worst difference / spread 0.40" in text


@pytest.mark.parametrize("high", [0.013, 0.9, 1, 7.3, 24, 252.0, 3e6])
def test_axes_have_a_handful_of_round_numbers_that_reach_the_end(high: float) -> None:
    for low in (0.0, high / 3):
        ticks = chart.steps_of(low, high)
        assert 4 <= len(ticks) <= 9
        assert ticks[0] == pytest.approx(low)
        assert ticks[-2] < high <= ticks[-1] + 1e-9


def test_the_newest_record_is_written_beside_itself(tmp_path: Path, capsys) -> None:
    arguments = ("*-x.json", lambda record, name: f"{name} {record['n']}", lambda record: "<svg/>")
    assert records.write_newest(*arguments, folder=tmp_path) == 2
    assert "no *-x.json" in capsys.readouterr().err
    (tmp_path / "2026-01-02-x.json").write_text('{"n": 1}')
    (tmp_path / "2026-01-03-x.json").write_text('{"n": 2}')
    assert records.write_newest(*arguments, folder=tmp_path) == 0
    assert (tmp_path / "2026-01-03-x.md").read_text() == "2026-01-03-x 2"
    assert (tmp_path / "2026-01-03-x.svg").read_text() == "<svg/>"
    assert not (tmp_path / "2026-01-02-x.md").exists()


if RECORDS:  # what a GPU measured is committed with the page and the picture made from it

    @pytest.mark.parametrize(("module", "record"), RECORDS, ids=lambda value: str(value)[-40:])
    def test_committed_pages_and_pictures_are_of_their_records(module, record: Path) -> None:
        for path, text in records.files(record, module.page, module.drawing).items():
            assert path.read_text(encoding="utf-8") == text, f"run python -m {module.__name__}"
