"""Ctrl-C, SIGTERM and a closed terminal as a request that the loop looks at between two steps."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """``signal_number`` is None until a signal has come."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def _ask(self, number: int, frame: Any) -> None:
        self.signal_number = number
        signal.signal(number, self._before[number])

    def _take(self, numbers: Iterable[int]) -> None:
        handlers = {number: signal.getsignal(number) for number in numbers}
        self._before = {
            number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN
        }
        for number in self._before:
            signal.signal(number, self._ask)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
    request._take((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield request
    finally:
        request._give_back()
