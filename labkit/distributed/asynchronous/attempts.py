"""What each asynchronous worker is doing: the step that it makes now, and since when.

Standard library only.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.distributed.progress import PATIENCE, TIMES_AS_LONG, USUAL_STEPS

__all__ = ["Attempts"]


@dataclass
class _Attempt:
    began: float
    first: bool  # of a worker, which compiles the step
    reported: bool = False


class Attempts:
    """Finds workers whose step does not end, although other workers' steps do.

    Used by the thread of the coordinator that serves a worker (``attempt``), and by the one that watches.
    """

    def __init__(self) -> None:
        self._running: dict[str, _Attempt] = {}
        self._seconds: dict[str, deque[float]] = {}  # of the last steps of each worker
        self._changed = threading.Lock()

    @contextmanager
    def attempt(self, worker: str) -> Iterator[None]:
        """Note that ``worker``, such as ``worker:1``, makes a step within this context."""
        began = time.monotonic()
        with self._changed:
            self._running[worker] = _Attempt(began, first=worker not in self._seconds)
        try:
            yield
        except BaseException:
            with self._changed:  # the next one may be of another process, which compiles the step anew
                self._seconds.pop(worker, None)
            raise
        else:
            with self._changed:
                last = self._seconds.setdefault(worker, deque(maxlen=USUAL_STEPS))
                last.append(time.monotonic() - began)
        finally:
            with self._changed:
                del self._running[worker]

    def overdue(self, minimum: float) -> dict[str, float]:
        """Return the workers whose step takes too long, each such step once, and the seconds that it took.

        Empty where the steps of all of several busy workers take long: the fault is not one worker's then.

        Args:
            minimum: seconds that are never too long. A step may also take ``TIMES_AS_LONG`` times as long as
                the worker's usual one, and a worker's first step ``PATIENCE`` times longer than all others.
        """
        now, found = time.monotonic(), {}
        with self._changed:
            shares = {worker: self._share(worker, now, minimum) for worker in self._running}
            if len(shares) > 1 and min(shares.values()) > 0.5:
                return {}
            for worker, attempt in self._running.items():
                if shares[worker] > 1 and not attempt.reported:
                    attempt.reported = True
                    found[worker] = now - attempt.began
        return found

    def _share(self, worker: str, now: float, minimum: float) -> float:
        """Return how long the worker's step takes, in parts of the longest time that it may take."""
        attempt = self._running[worker]
        usual = statistics.median(self._seconds.get(worker) or [0.0])
        limit = max(minimum, TIMES_AS_LONG * usual) * (PATIENCE if attempt.first else 1)
        return (now - attempt.began) / limit
