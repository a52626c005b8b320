"""The tasks and workers of a cluster on the live page: their state, speed, shares of time and staleness."""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app import state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line
from app.charts.metric_charts import Options
from app.charts.smoothing import smoothed, spacing
from app.charts.store import Curve, Floats, Snapshot, follow, store_of, timeline_of
from app.markup import Bar, duration, number_text, table_html
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, process_space, read_heartbeats
from labkit.run_directory import RunDirectory, process_alive
from labkit.run_directory.rows import RowReader
from labkit.run_directory.worker_metrics import KEPT_ROWS, Straggler, find_stragglers

SHARES = {  # of a worker's time, with their titles and colours
    "compute_fraction": ("compute", PALETTE[0]),
    "communication_fraction": ("communication", PALETTE[1]),
    "input_wait_fraction": ("input, waiting", PALETTE[7]),
}
COLUMNS = ("wall_time", "step", "examples_per_second", *SHARES)
STALLED_AFTER_SECONDS = 15.0  # without a heartbeat; a task writes one a second
MAX_ROWS = 7200  # of each worker, which writes one a second: the last two hours


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
        kept = self._rows.setdefault(f"{job}:{index}", deque(maxlen=MAX_ROWS))

        def take(rows: list[Mapping[str, Any]]) -> None:
            for row in rows:
                if not all(isinstance(value, int | float) for value in _values(row)):
                    continue
                while kept and kept[-1]["step"] > row["step"]:  # the run was resumed from an earlier step
                    kept.pop()
                kept.append(row)

        return follow(reader, take, kept.clear)


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


RATES = "workers", "Examples per second of each worker"  # key and title of a chart
LAST_ROWS = 60  # of each worker: the last minute
MAX_STALENESS = 100_000  # that is drawn; a damaged row may tell any number


def show_tasks(run: RunDirectory) -> None:
    """Draw the table of the tasks. Draws nothing for a run that no cluster has trained."""
    if not run.cluster_path.is_dir():
        return
    tasks, workers = store_of(ClusterStore, run.cluster_path).tasks(), _polled(run)
    if tasks:
        st.dataframe(
            [_row(task, workers) for task in tasks],
            key=f"tasks-{run.path}",
            hide_index=True,
            placeholder="–",
            column_config={
                "Examples per second": st.column_config.NumberColumn(format="%.0f"),
                "Step": st.column_config.NumberColumn(format="localized"),
                "Sent per step": st.column_config.NumberColumn(format="bytes"),
                "Received per step": st.column_config.NumberColumn(format="bytes"),
            },
        )
    for straggler in workers.stragglers:
        st.warning(f"Straggler: {straggler.in_words}.")


def _row(task: Task, workers: Workers) -> dict[str, Any]:
    beat = task.beat
    rate, step, last = None, beat.step or None, workers.last.get(beat.name, {})
    if beat.name in workers.rows:  # the chief writes those of asynchronous workers
        rate = float(workers.column(beat.name, "examples_per_second")[-1])
        step = int(workers.column(beat.name, "step")[-1])
    return {
        "Task": beat.name,
        "State": task.state + (f": {beat.message}" if beat.phase == "lost" and beat.message else ""),
        "Examples per second": rate,
        "Step": step,
        "Sent per step": last.get("bytes_sent_per_step"),
        "Received per step": last.get("bytes_received_per_step"),
        "Last heartbeat": "–" if task.state == "ended" else f"{duration(task.age)} ago",
        "Address": beat.address,
        "Process": f"{beat.pid} on {beat.host}",
    }


def _polled(run: RunDirectory) -> Workers:
    """Return the metrics of the workers; none if no cluster trains the run."""
    if not run.cluster_path.is_dir():
        return Workers({}, 0)
    try:
        return store_of(ClusterStore, run.cluster_path).poll()
    except OSError as error:
        st.error(f"{state.as_code(run.cluster_path)} can't be read: {error.strerror}")
        return Workers({}, 0)


def worker_rates(
    run: RunDirectory, options: Options, metrics: Snapshot
) -> tuple[int, Callable[[], list[Chart]]]:
    """Return a version of the workers' metrics, and what makes the chart of each worker's speed from them.

    There is no chart if no cluster trains the run, or nothing is known yet.
    """
    workers = _polled(run)

    def charts() -> list[Chart]:
        timeline, lines = timeline_of(metrics), []
        for number, name in enumerate(workers.rows):
            step, rate = workers.column(name, "step"), workers.column(name, "examples_per_second")
            epoch = np.interp(step, timeline.step, timeline.epoch) if len(timeline.step) else step
            curve = Curve(step, epoch, workers.column(name, "wall_time"), rate)
            y = smoothed(rate, step, options.kind, options.smoothing, spacing(step))
            lines.append(Line(name, timeline.x(curve, options.axis), y, PALETTE[number % len(PALETTE)]))
        return [Chart(*RATES, lines)] if lines else []

    return workers.version, charts


def show_shares(run: RunDirectory) -> None:
    """Draw each worker's shares of time, and staleness. Draws nothing if there are no metrics yet."""
    workers = _polled(run)
    if not workers.rows:
        return
    rows = [
        (name, *(_share(workers.column(name, share), color) for share, (_, color) in SHARES.items()))
        for name in workers.rows
    ]
    titles = (title for title, _ in SHARES.values())
    st.html(table_html(("Shares of time in the last minute", *titles), rows))
    if workers.staleness:
        key, wanted = component.key_of("workers-staleness", run.path), (run.path, workers.version)
        title = "Updates by other workers since the weights were read"
        component.draw_charts(
            key,
            wanted,
            lambda _: [staleness_chart(workers.staleness)],
            axis="count",
            x_title=title,
            name=run.name,
        )


def _share(values: Floats, color: str) -> Bar:
    share = float(values[-LAST_ROWS:].mean())
    return Bar("–" if math.isnan(share) else number_text(share, ".0%"), max(0.0, np.nan_to_num(share)), color)


def staleness_chart(counts: Mapping[str, Mapping[int, int]]) -> Chart:
    """Return the chart with, for each worker, the share of its updates at each staleness.

    ``counts``: updates at each staleness, by the worker's name.
    """
    lines = []
    for number, (worker, of_worker) in enumerate(counts.items()):
        known = [value for value in of_worker if value <= MAX_STALENESS]
        if not known or not (total := sum(of_worker.values())):
            continue
        x = np.arange(min(known), max(known) + 1)
        updates = np.array([of_worker.get(value, 0) for value in x.tolist()], np.float64)
        color = PALETTE[number % len(PALETTE)]
        lines.append(Line(worker, x.astype(np.float64), updates / total, color, "marked"))
    return Chart("staleness", "Staleness of the updates", lines, "percent")
