"""Turn Ctrl-C, SIGTERM and a closed terminal into a stop request that the loop checks between steps."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """Whether a signal has asked this process to stop. ``signal_number`` is None until then."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def _handle(self, number: int, frame: Any) -> None:
        self.signal_number = number
        signal.signal(number, self._before[number])

    def _install(self, numbers: Iterable[int]) -> None:
        handlers = {number: signal.getsignal(number) for number in numbers}
        self._before = {
            number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN
        }
        for number in self._before:
            signal.signal(number, self._handle)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def name(self) -> str:
        return signal.Signals(self.signal_number).name if self.signal_number else ""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request; a second one has its usual effect.

    Ignored signals, such as SIGHUP under nohup, stay ignored. Outside of the main thread, where Python can't
    handle signals, there is never a request.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    request._install((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield request
    finally:
        request._restore()
