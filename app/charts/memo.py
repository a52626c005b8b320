"""What was computed from one version of a run's metrics, shared by all sessions that show it."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["Memo"]

MOST_BYTES = 1 << 27

Made = TypeVar("Made")


class Memo:
    """Values by their key, up to ``most_bytes`` together: the ones used longest ago are forgotten first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._values: dict[Hashable, tuple[Any, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the value of ``key``, which ``make`` computes unless it is known.

        Two sessions that ask at once may both compute it.
        """
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
                found: Made = self._values[key][0]
                return found
        made = make()
        size = _bytes_of(made)
        with self._lock:
            self._bytes += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (made, size)
            while self._bytes > self._most_bytes and len(self._values) > 1:
                self._bytes -= self._values.pop(next(iter(self._values)))[1]
        return made


def _bytes_of(value: Any) -> int:
    """Return the size of bytes, of arrays, and of those in a list or in an object with arrays."""
    if isinstance(value, bytes):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0
