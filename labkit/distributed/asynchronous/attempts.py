"""What each asynchronous worker is doing: the step that it makes now, and for how long.

Standard library only.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.distributed.progress import PATIENCE, TIMES_AS_LONG, USUAL_STEPS

__all__ = ["Attempt", "Attempts"]


@dataclass(eq=False)
class Attempt:
    """A step that a worker makes now.

    ``incarnation``: of the worker's process. ``first``: whether it compiles the step. ``watched``: seconds
    for which ``overdue`` has seen it. ``others_ended``: whether another worker has ended a step since it
    began. ``dismissed``, ``reported``: for the caller of ``overdue``: whether it has told the worker to end,
    or has said why it can't.
    """

    worker: str
    incarnation: str
    first: bool
    watched: float = 0.0
    others_ended: bool = False
    dismissed: bool = False
    reported: bool = False


class Attempts:
    """Finds workers whose step does not end, although other workers' steps do.

    Used by the threads of the coordinator that serve the workers (``attempt``), and by the one that watches.

    Args:
        incarnation_of: returns the incarnation of a worker's process, as its heartbeat names it.
    """

    def __init__(self, incarnation_of: Callable[[str], str]) -> None:
        self._incarnation_of = incarnation_of
        self._running: dict[str, Attempt] = {}
        self._seconds: dict[str, deque[float]] = {}  # of the last steps of each worker
        self._changed = threading.Lock()

    @contextmanager
    def attempt(self, worker: str) -> Iterator[None]:
        """Note that ``worker``, such as ``worker:1``, makes a step within this context."""
        began, incarnation = time.monotonic(), self._incarnation_of(worker)
        with self._changed:
            self._running[worker] = Attempt(worker, incarnation, first=worker not in self._seconds)
        try:
            yield
        except BaseException:
            with self._changed:
                del self._running[worker]
                self._seconds.pop(worker, None)  # another process may make the next step, and compile it
            raise
        with self._changed:
            del self._running[worker]
            last = self._seconds.setdefault(worker, deque(maxlen=USUAL_STEPS))
            last.append(time.monotonic() - began)
            for other in self._running.values():
                other.others_ended = True

    def overdue(self, elapsed: float, minimum: float) -> list[Attempt]:
        """Return the steps that take too long, of workers that are to blame for it.

        A worker is to blame if another worker has ended a step meanwhile, and no other worker's step takes
        long, too: else they may all be waiting for a parameter server.

        Args:
            elapsed: seconds that the caller has watched since the last call. The clock goes on while this
                process is suspended, and the workers with it.
            minimum: seconds that are never too long. A step may also take ``TIMES_AS_LONG`` times as long as
                the worker's usual one, and a worker's first step ``PATIENCE`` times longer than all others.
        """
        with self._changed:
            running = list(self._running.values())
            for attempt in running:
                attempt.watched += elapsed
            return [each for each in running if self._is_overdue(each, running, minimum)]

    def _is_overdue(self, attempt: Attempt, running: list[Attempt], minimum: float) -> bool:
        usual = statistics.median(self._seconds.get(attempt.worker) or [0.0])
        limit = max(minimum, TIMES_AS_LONG * usual) * (PATIENCE if attempt.first else 1)
        others_are_quick = all(other is attempt or other.watched < limit / 2 for other in running)
        return attempt.watched > limit and attempt.others_ended and others_are_quick
