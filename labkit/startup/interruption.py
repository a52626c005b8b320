"""Signals that ask a process to stop, and what they do to a ``labkit`` command that doesn't train.

It is loaded before everything else, so that Ctrl-C at the start ends in one line, and imports little.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType

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
    while frame is not None:
        # Imports of compiled modules turn exceptions into others, and callbacks of the importer lose them.
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            sys.stdout.flush()
            os.write(stderr, f"labkit: {described(number)}\n".encode())
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt(number)
