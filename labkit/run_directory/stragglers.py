"""Workers of a cluster that take much longer for a step than the others.

Console and dashboard decide alike, from the rows of ``worker_metrics``.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from labkit.run_directory.rows import RowReader

BEGINS_AT = 1.5  # times the median of the other workers
ENDS_BELOW = 1.25  # lower, so that a worker near the limit isn't named again and again
KEPT_ROWS = 5  # of each worker, about a second each
NEEDED_ROWS = 2
# A worker with older rows than this, compared with the newest of all, is lost or has ended.
SECONDS_BEHIND = 60.0


@dataclass(frozen=True)
class Straggler:
    """A slow worker: its seconds a step, and the median of the other workers' seconds."""

    worker: str
    seconds: float
    others: float

    @property
    def in_words(self) -> str:
        times = f"{self.seconds / self.others:.1f} times as long as the others (median {self.others:.3f} s)"
        return f"{self.worker} takes {self.seconds:.3f} s a step, {times}"


def find_stragglers(
    rows: Mapping[str, Iterable[Mapping[str, Any]]], earlier: Collection[str] = ()
) -> list[Straggler]:
    """Return the workers that take 1.5 times as long for a step as the median of the others.

    Args:
        rows: the last ``KEPT_ROWS`` rows of each worker, by its name.
        earlier: those found the last time. They stay until they take less than 1.25 times as long.
    """
    seconds = _seconds_per_step(rows)
    found = []
    for worker, own in seconds.items():
        others = median(value for name, value in seconds.items() if name != worker) if len(seconds) > 1 else 0
        limit = ENDS_BELOW if worker in earlier else BEGINS_AT
        if others > 0 and own >= limit * others:
            found.append(Straggler(worker, own, others))
    return found


def _seconds_per_step(rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the mean of each worker that has enough recent rows."""
    usable = {worker: [row for row in of_worker if _is_usable(row)] for worker, of_worker in rows.items()}
    newest = max((of_worker[-1]["wall_time"] for of_worker in usable.values() if of_worker), default=0.0)
    seconds = {}
    for worker, of_worker in usable.items():
        if len(of_worker) < NEEDED_ROWS or of_worker[-1]["wall_time"] < newest - SECONDS_BEHIND:
            continue
        steps = sum(row["steps"] for row in of_worker)
        seconds[worker] = sum(row["own_seconds_per_step"] * row["steps"] for row in of_worker) / steps
    return seconds


def _is_usable(row: Mapping[str, Any]) -> bool:
    """Return whether a row has numbers; the seconds are NaN where communication isn't measured."""
    values = [row.get(name) for name in ("own_seconds_per_step", "steps", "wall_time")]
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    return numbers and row["steps"] > 0


class Stragglers:
    """Follows the metrics of all workers, for the chief's console.

    Args:
        folder: ``<run>/cluster``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, RowReader] = {}
        self._rows: dict[str, deque[dict[str, Any]]] = {}
        self._earlier: frozenset[str] = frozenset()
        self._read()
        self._rows.clear()  # rows of an earlier session say nothing about this one

    def news(self) -> list[str]:
        """Read what was appended, and return a line for each straggler that begins or ends."""
        self._read()
        found = {straggler.worker: straggler for straggler in find_stragglers(self._rows, self._earlier)}
        lines = [
            f"straggler: {straggler.in_words}"
            for worker, straggler in found.items()
            if worker not in self._earlier
        ]
        lines += [f"{worker} is no straggler any more" for worker in sorted(self._earlier - found.keys())]
        self._earlier = frozenset(found)
        return lines

    def _read(self) -> None:
        for path in self._folder.glob("*.jsonl"):
            reader = self._readers.setdefault(path.name, RowReader(path, keep_rows=False))
            try:
                rows = reader.poll()
            except OSError:  # of another host's file system; the next call reads on
                continue
            for row in rows:
                self._rows.setdefault(str(row.get("worker")), deque(maxlen=KEPT_ROWS)).append(row)
