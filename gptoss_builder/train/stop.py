"""Stopping on a signal: the first one at the next step boundary, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While active, remembers the first SIGTERM or SIGINT.

    A training step is never cut in two, so whatever the signal interrupts (a compile, an
    evaluation, the first step) ends or is left at a place where a checkpoint is whole. A second
    signal has its usual effect at once. Off the main thread, where Python takes no signals,
    nothing is installed.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that came; None if none did."""
        self._previous: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._release()
        message = f"\n{self.signal.name}: saving at the next step; again to stop at once\n"
        with suppress(OSError):  # nobody may read it
            os.write(2, message.encode())

    def _release(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
