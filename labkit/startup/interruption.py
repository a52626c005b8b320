"""Signals that ask a process to stop: what they do to a ``labkit`` command that doesn't train, and as
requests that whoever works checks.

It is loaded before everything else, so that Ctrl-C at the start ends in one line, and imports little.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

# What batch systems send before a job's time is over. They may repeat it; the kernel repeats SIGXCPU.
ANNOUNCEMENTS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *ANNOUNCEMENTS)
STOPPED = tuple(128 + number for number in REQUESTS)  # exit codes of processes that ended on request

Handler = Callable[[int, FrameType | None], object] | int | None

stderr = 2  # file descriptor for the last line; another one while quiet_import holds stderr back


def take_requests(handler: Callable[[int, FrameType | None], object]) -> dict[int, Handler]:
    """Handle the signals in ``REQUESTS`` by ``handler``; return their handlers so far.

    Ignored signals, such as SIGHUP under nohup, stay ignored; a user's own handler of SIGUSR1, SIGUSR2 or
    SIGXCPU stays, too. Outside of the main thread, where Python can't handle signals, none is taken.
    """
    before: dict[int, Handler] = {}
    for number in REQUESTS:
        found = signal.getsignal(number)
        if found == signal.SIG_IGN:
            continue
        if number in ANNOUNCEMENTS and found not in (signal.SIG_DFL, end_command):
            continue
        try:
            signal.signal(number, handler)
        except ValueError:  # not the main thread
            return {}
        before[number] = found
    return before


def restore_handlers(before: Mapping[int, Handler]) -> None:
    """Undo ``take_requests``."""
    for number, handler in before.items():
        signal.signal(number, handler)


def end_on_requests() -> None:
    """Let each signal in ``REQUESTS`` end this process with one line.

    A command gets KeyboardInterrupt with the signal's number, so that it can clean up.
    """
    take_requests(end_command)


def leave_requests() -> None:
    """Undo ``end_on_requests`` before Python ends, when an exception would be printed with its traceback."""
    for number in REQUESTS:
        if signal.getsignal(number) is end_command:
            signal.signal(number, signal.SIG_IGN if number in ANNOUNCEMENTS else signal.SIG_DFL)


def described(number: int) -> str:
    """Return what a command says that a signal has ended."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


def end_command(number: int, frame: FrameType | None) -> None:
    """Handle a signal: end at once during an import, else raise KeyboardInterrupt with its number."""
    if in_import(frame):
        sys.stdout.flush()
        os.write(stderr, f"labkit: {described(number)}\n".encode())
        os._exit(128 + number)
    raise KeyboardInterrupt(number)


def in_import(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to an import.

    Imports of compiled modules turn exceptions into others, and callbacks of the importer lose them.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


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
