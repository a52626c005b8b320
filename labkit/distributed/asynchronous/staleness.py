"""``--max-staleness``: holds steps back so that none is changed by too many others while it runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

__all__ = ["StalenessLimit"]

# A lost worker's servers may still make an update that they have received in full; it takes milliseconds.
SECONDS_TO_SETTLE = 1.0


class StalenessLimit:
    """Lets a step start only if no step can then exceed ``limit`` updates by others while it runs.

    A step reads the weights after it has started here, and has made its update when it ends here. So the
    updates between its read and its own are at most one for each step that was running when it started, and
    one for each step that started since. These are counted for each running step; a new one starts once its
    own count is at most ``limit`` and no other's count would exceed it.

    A step that is made again, because its worker was lost, starts here again and counts again. Waiting steps
    wait for running ones alone, so there is no deadlock. Used by one thread for each worker.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._others: dict[object, int] = {}  # of each running step: updates that others can make meanwhile
        self._changed = threading.Condition()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Wait until a step may start, and let it run within this context."""
        step = object()
        with self._changed:
            self._changed.wait_for(self._may_start)
            for other in self._others:
                self._others[other] += 1
            self._others[step] = len(self._others)
        try:
            yield
        except tf.errors.OpError:
            time.sleep(SECONDS_TO_SETTLE)
            raise
        finally:
            with self._changed:
                del self._others[step]
                self._changed.notify_all()

    def _may_start(self) -> bool:
        return len(self._others) <= self._limit and all(
            count < self._limit for count in self._others.values()
        )
