"""What a run shows, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gptoss_builder.train import display
from gptoss_builder.train.display import Display


def _show(*, terminal: bool, steps: int = 40, finite: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with Display(console, start=8, steps=steps) as shown:
        for done in range(9, steps + 1):
            shown.step(done, loss=2.5, tokens_per_second=1234.5, finite=finite or done != 20)
        shown.note("a [note] stays")
    return file.getvalue()


def test_a_terminal_gets_a_bar_with_loss_rate_and_time_left() -> None:
    out = _show(terminal=True)
    assert "40/40" in out
    assert "loss 2.5000  1,23" in out
    assert "0:00:00" in out
    assert "a [note] stays" in out


def test_elsewhere_there_are_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 3))  # a step takes 3 s
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(clock)))
    lines = _show(terminal=False).splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "step 9/40  loss 2.5000  1,234 tokens/s  0:01:33 left"
    assert lines[1].startswith("step 13/40")  # the first one more than 10 s later
    assert lines[-2:] == ["step 40/40  loss 2.5000  1,234 tokens/s  0:00:00 left", "a [note] stays"]
    assert len(lines) == 10


def test_a_step_that_is_not_finite_is_always_said() -> None:
    for terminal in (False, True):
        assert "step 20: loss or gradient norm is not finite" in _show(
            terminal=terminal, finite=False
        )
