"""What a run shows: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 10.0
"""Time between two plain lines."""


class Display:
    """Shows steps as they end, and notes between them."""

    def __init__(self, console: Console, *, start: int, steps: int) -> None:
        """Show steps `start` … `steps`, of which `start` are done."""
        self._console = console
        self._start, self._steps = start, steps
        self._began = time.monotonic()
        self._last_line = -LINE_SECONDS
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._progress.add_task("training", total=steps, numbers="")
            self._progress.update(self._task, completed=start)

    def step(self, done: int, *, loss: float, tokens_per_second: float, finite: bool) -> None:
        """A step has ended; `done` of all are done now."""
        numbers = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s"
        if not finite:
            self.note(f"step {done}: loss or gradient norm is not finite")
        if self._progress is not None:
            self._progress.update(self._task, completed=done, numbers=numbers)
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_SECONDS or done == self._steps:
            self._last_line = now
            left = (now - self._began) / (done - self._start) * (self._steps - done)
            self._print(f"step {done}/{self._steps}  {numbers}  {_duration(left)} left")

    def note(self, text: str) -> None:
        """One line that stays."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
