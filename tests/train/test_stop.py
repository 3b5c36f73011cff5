"""Signals: one whole checkpoint, wherever the signal comes, and a second one stops at once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from gptoss_builder.train import checkpoint
from gptoss_builder.train.stop import StopRequest
from tests.train.runs import lines, run, same, small_plan, weights


class _Signalling:
    """Sends a signal to this process when a certain sequence is asked for."""

    identity = "signalling"
    held_out_count = 4

    def __init__(self, *, train: int | None = None, held_out: int | None = None) -> None:
        self.train, self.at_held_out = train, held_out

    def sequence(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        if position == self.train:
            os.kill(os.getpid(), signal.SIGTERM)
        tokens = np.random.RandomState(position).randint(0, 256, 17)
        return tokens[:-1], tokens[1:]

    def held_out(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == self.at_held_out:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.sequence(10**6 + index)


@pytest.mark.parametrize(
    "place",
    [{"train": 0}, {"train": 9}, {"train": 15}, {"held_out": 0}, {"held_out": 3}],
    ids=["first batch", "middle", "last batch", "evaluation", "end of evaluation"],
)
def test_a_signal_leaves_one_whole_checkpoint_that_resumes_exactly(
    tmp_path: Path, place: dict[str, int]
) -> None:
    plan = small_plan(tmp_path, training={"eval_every": 5})
    result = run(plan, tmp_path / "run", data=_Signalling(**place))
    assert result.stopped_by == signal.SIGTERM
    assert result.held_out is None or result.steps_done == 8
    ((step, path),) = checkpoint.found(tmp_path / "run" / "checkpoints")
    assert step == result.steps_done
    assert path == result.checkpoint
    resumed = run(plan, tmp_path / "run", data=_Signalling(), resume="auto")
    whole = run(plan, tmp_path / "whole", data=_Signalling())
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    assert same(weights(resumed.model), weights(whole.model))


def test_handlers_are_back_after_a_run() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopRequest() as stop:
        assert not stop
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_second_signal_has_its_usual_effect() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_off_the_main_thread_no_handler_is_installed() -> None:
    seen: list[object] = []

    def enter() -> None:
        with StopRequest():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
