"""Ctrl-C, SIGTERM and a closed terminal as a request that the loop looks at between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """``signal_number`` is None until a signal has come."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def name(self) -> str:
        return signal.Signals(self.signal_number).name if self.signal_number else ""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request; the second acts as it would without this.

    A signal that is ignored, as SIGHUP under nohup, stays so. Outside of the main thread, where Python takes
    no handlers, the request never comes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def ask(number, frame):
        request.signal_number = number
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
