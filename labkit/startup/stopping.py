"""Ctrl-C, a closed terminal and a batch system's signals as requests that whoever works checks."""

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from labkit.startup.interruption import ANNOUNCEMENTS, end_command, restore_handlers, take_requests


class StopRequest:
    """Whether a signal has asked this process to stop. ``signal_number`` is None until then."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: Mapping[int, Any] = {}

    def _handle(self, number: int, frame: Any) -> None:
        self.signal_number = self.signal_number or number
        if number in ANNOUNCEMENTS:
            return
        handler = self._before[number]
        # Without a handler, a second SIGTERM ends a process that waits in TensorFlow, too.
        by_default = handler is end_command and number != signal.SIGINT
        signal.signal(number, signal.SIG_DFL if by_default else handler)

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def name(self) -> str:
        return signal.Signals(self.signal_number).name if self.signal_number else ""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first signal in ``labkit.startup.interruption.REQUESTS`` into a request.

    A second SIGINT, SIGTERM or SIGHUP has its usual effect. What batch systems send (SIGUSR1, SIGUSR2,
    SIGXCPU) has no other effect when it is repeated. Outside of the main thread there is never a request.
    """
    request = StopRequest()
    request._before = take_requests(request._handle)
    try:
        yield request
    finally:
        restore_handlers(request._before)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect the signals in ``labkit.startup.interruption.REQUESTS`` in a list in place of acting on them.

    Signals within a second count as one request, because a closing terminal and its shell both send SIGHUP.
    What batch systems send counts once, however often they do. Outside of the main thread the list stays
    empty.
    """
    received: list[int] = []
    last = -math.inf

    def note(number: int, frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > 1.0 and not (received and number in ANNOUNCEMENTS):
            received.append(number)
            last = time.monotonic()

    before = take_requests(note)
    try:
        yield received
    finally:
        restore_handlers(before)
