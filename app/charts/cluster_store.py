"""The tasks and workers of a cluster, read from the run directory while they write."""

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.charts.store import Floats
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, process_space, read_heartbeats
from labkit.run_directory import process_alive
from labkit.run_directory.rows import RowReader
from labkit.run_directory.stragglers import KEPT_ROWS, Straggler, find_stragglers

__all__ = ["SHARES", "ClusterStore", "Task", "Workers"]

SHARES = ("compute_fraction", "communication_fraction", "input_wait_fraction")
COLUMNS = ("wall_time", "step", "examples_per_second", *SHARES)
STALLED_AFTER_SECONDS = 15.0  # without a heartbeat; a task writes one a second
MAX_ROWS = 7200  # of each worker, which writes one a second: the last two hours
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Task:
    """A task's last heartbeat, and its age in seconds."""

    beat: Heartbeat
    age: float

    @property
    def state(self) -> str:
        """The state of the task, from its last heartbeat, the heartbeat's age and its process."""
        beat = self.beat
        if beat.phase == "left":
            return "ended"
        if beat.process_space == process_space() and not process_alive(beat.pid):
            return "lost"
        if beat.phase == "lost":
            return "lost a peer"
        if self.age > STALLED_AFTER_SECONDS:
            return "stalled"
        missing = [name for name, incarnation in beat.seen.items() if not incarnation]
        if beat.phase == "waiting" and missing:
            return "waiting for " + ", ".join(missing)
        return "running" if beat.phase in ("waiting", "serving", "training") else beat.phase


@dataclass(frozen=True)
class Workers:
    """The metrics of each worker by its name, float64 [rows, COLUMNS]. Later polls don't change them.

    ``last``: the last row of each worker as it was written. ``staleness``: how many updates of each worker
    had each staleness, in the rows that are kept; empty in synchronous training.
    """

    rows: dict[str, Floats]
    version: int  # grows with every change
    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    staleness: dict[str, Counter[int]] = field(default_factory=dict)
    stragglers: tuple[Straggler, ...] = ()

    def column(self, worker: str, name: str) -> Floats:
        return self.rows[worker][:, COLUMNS.index(name)]


class ClusterStore:
    """Follows the workers' metrics and the tasks' heartbeats in ``<run>/cluster``.

    Several sessions may poll at once. The clocks of other hosts aren't trusted: the age of a heartbeat is the
    time for which this process has seen it unchanged. Only the first time is the file's modification time
    used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._readers: dict[str, RowReader] = {}
        self._rows: dict[str, deque[Mapping[str, Any]]] = {}
        self._last_changes: dict[str, tuple[tuple[str, int], float]] = {}
        self._workers = Workers({}, 0)

    def tasks(self) -> list[Task]:
        """Return the tasks that have written a heartbeat, sorted by name."""
        with self._lock:
            beats = read_heartbeats(self._folder).values()
            return [Task(beat, self._age(beat)) for beat in sorted(beats, key=lambda beat: beat.name)]

    def _age(self, beat: Heartbeat) -> float:
        identity, now = (beat.incarnation, beat.counter), time.monotonic()
        known = self._last_changes.get(beat.name)
        if known is None:
            self._last_changes[beat.name] = (identity, now - self._file_age(beat.name))
        elif known[0] != identity:
            self._last_changes[beat.name] = (identity, now)
        return now - self._last_changes[beat.name][1]

    def _file_age(self, name: str) -> float:
        try:
            return max(0.0, time.time() - heartbeat_path(self._folder, name).stat().st_mtime)
        except (OSError, ValueError):
            return 0.0

    def poll(self) -> Workers:
        """Read what was appended and return the workers' metrics. Raises OSError for an unreadable file."""
        with self._lock:
            changed = [self._follow(path) for path in sorted(self._folder.glob("*.jsonl"))]
            if any(changed):
                self._workers = self._summarized()
            return self._workers

    def _summarized(self) -> Workers:
        kept = {name: rows for name, rows in self._rows.items() if rows}
        staleness = {name: _staleness(rows) for name, rows in kept.items()}
        earlier = [straggler.worker for straggler in self._workers.stragglers]
        return Workers(
            {name: np.array([_values(row) for row in rows], np.float64) for name, rows in kept.items()},
            self._workers.version + 1,
            {name: rows[-1] for name, rows in kept.items()},
            {name: counts for name, counts in staleness.items() if counts},
            tuple(find_stragglers({name: list(rows)[-KEPT_ROWS:] for name, rows in kept.items()}, earlier)),
        )

    def _follow(self, path: Path) -> bool:
        reader = self._readers.setdefault(path.name, RowReader(path, keep_rows=False))
        job, _, index = path.stem.rpartition("-")
        name, generation, changed = f"{job}:{index}", reader.generation, False
        kept = self._rows.setdefault(name, deque(maxlen=MAX_ROWS))
        while True:
            rows = reader.poll(BLOCK_BYTES)
            if reader.generation != generation:
                generation, changed = reader.generation, True
                kept.clear()
            for row in rows:
                if not all(isinstance(value, int | float) for value in _values(row)):
                    continue
                while kept and kept[-1]["step"] > row["step"]:  # the run was resumed from an earlier step
                    kept.pop()
                kept.append(row)
                changed = True
            if reader.caught_up:
                return changed


def _values(row: Mapping[str, Any]) -> list[Any]:
    return [row.get(column) for column in COLUMNS]


def _staleness(rows: deque[Mapping[str, Any]]) -> Counter[int]:
    """Return how many updates had each staleness. Damaged counts are left out."""
    total: Counter[int] = Counter()
    for row in rows:
        counts = row.get("staleness_counts")
        for value, count in counts.items() if isinstance(counts, dict) else ():
            if value.isdecimal() and isinstance(count, int):
                total[int(value)] += count
    return total
