"""A limit of the time that a student's code may take."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["TooLong", "time_limit"]


class TooLong(BaseException):
    """Not an Exception, so that an answer's ``except Exception`` doesn't catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in the code of the ``with`` block after ``seconds``, and again each second until it ends.

    From the second time on it is raised once more at the next line, which is that of an ``except:`` which
    caught it. Does nothing outside the main thread and where there is no SIGALRM.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    owner = sys._getframe(2)  # whose ``with`` it is; contextlib is between
    started, traced_by, fired = time.monotonic(), sys.gettrace(), 0

    def at_next_line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            raise TooLong
        return at_next_line

    def end(number: int, frame: Any) -> None:
        nonlocal fired
        fired += 1
        if fired > 1:
            sys.settrace(lambda frame, event, argument: None)
            while frame is not None and frame is not owner:
                frame.f_trace, frame = at_next_line, frame.f_back
        raise TooLong

    before = signal.signal(signal.SIGALRM, end)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(traced_by)
        signal.signal(signal.SIGALRM, before)
        if remaining:  # the limit around this one
            left = remaining - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), interval)
