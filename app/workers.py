"""The tasks of a cluster on the live page: their state, and the speed and shares of time of each worker."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app import frames
from app.charts import PALETTE, curve_figure, shares_figure
from app.curves import Curve, Floats
from app.lines import Line, last_steps
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, process_space, read_heartbeats
from labkit.run_directory import RunDirectory, process_alive
from labkit.run_directory.metrics import MetricsReader

__all__ = ["ClusterStore", "Task", "Workers", "show_rates", "show_tasks"]

SHARES = ("compute_fraction", "communication_fraction", "input_wait_fraction")
COLUMNS = ("wall_time", "step", "examples_per_second", *SHARES)
STALLED_AFTER_SECONDS = 15.0  # without a heartbeat; a task writes one a second
MAX_ROWS = 7200  # of each worker, which writes one a second: the last two hours
LAST_ROWS = 60  # of each worker: the last minute
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
    """The metrics of each worker by its name, float64 [rows, COLUMNS]. Later polls don't change them."""

    rows: dict[str, Floats]
    version: int  # grows with every change

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
        self._readers: dict[str, MetricsReader] = {}
        self._rows: dict[str, deque[tuple[float, ...]]] = {}
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
                arrays = {name: np.array(rows, np.float64) for name, rows in self._rows.items() if rows}
                self._workers = Workers(arrays, self._workers.version + 1)
            return self._workers

    def _follow(self, path: Path) -> bool:
        reader = self._readers.setdefault(path.name, MetricsReader(path, keep_rows=False))
        job, _, index = path.stem.rpartition("-")
        name, generation, changed = f"{job}:{index}", reader.generation, False
        kept = self._rows.setdefault(name, deque(maxlen=MAX_ROWS))
        while True:
            rows = reader.poll(BLOCK_BYTES)
            if reader.generation != generation:
                generation, changed = reader.generation, True
                kept.clear()
            for row in rows:
                values = [row.get(column) for column in COLUMNS]
                if not all(isinstance(value, int | float) for value in values):
                    continue
                while kept and kept[-1][1] > row["step"]:  # the run was resumed from an earlier step
                    kept.pop()
                kept.append(tuple(map(float, values)))  # type: ignore[arg-type]
                changed = True
            if reader.caught_up:
                return changed


@st.cache_resource(max_entries=16, show_spinner=False)
def _store(folder: Path) -> ClusterStore:
    return ClusterStore(folder)


def show_tasks(run: RunDirectory) -> None:
    """Draw the table of the tasks. Draws nothing for a run that no cluster has trained."""
    if not run.cluster_path.is_dir():
        return
    store = _store(run.cluster_path)
    tasks, workers = store.tasks(), _polled(store, run)
    if tasks:
        st.dataframe(
            [_row(task, workers) for task in tasks],
            key=f"tasks-{run.path}",
            hide_index=True,
            placeholder="–",
            column_config={
                "Examples per second": st.column_config.NumberColumn(format="%.0f"),
                "Step": st.column_config.NumberColumn(format="localized"),
            },
        )


def _row(task: Task, workers: Workers) -> dict[str, Any]:
    beat = task.beat
    rate, step = None, beat.step or None
    if beat.name in workers.rows:  # the chief writes those of asynchronous workers
        rate = float(workers.column(beat.name, "examples_per_second")[-1])
        step = int(workers.column(beat.name, "step")[-1])
    return {
        "Task": beat.name,
        "State": task.state + (f": {beat.message}" if beat.phase == "lost" and beat.message else ""),
        "Examples per second": rate,
        "Step": step,
        "Last heartbeat": "–" if task.state == "ended" else f"{_span(task.age)} ago",
        "Address": beat.address,
        "Process": f"{beat.pid} on {beat.host}",
    }


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _polled(store: ClusterStore, run: RunDirectory) -> Workers:
    try:
        return store.poll()
    except OSError as error:
        st.error(f"`{run.cluster_path}` can't be read: {error.strerror}")
        return Workers({}, 0)


def show_rates(run: RunDirectory, x_axis: str, smoothing: float, window: int | None, end: float) -> None:
    """Draw the speed and the shares of time of each worker. Draws nothing if there are no metrics yet.

    Args:
        run: the run that a cluster trains.
        x_axis: ``time``; any other value means the step.
        smoothing: of the speeds, as in the other charts of the page.
        window: how many last steps to show; None: all.
        end: the last step of the run.
    """
    workers = _polled(_store(run.cluster_path), run) if run.cluster_path.is_dir() else Workers({}, 0)
    if not workers.rows:
        return
    # Figures are made again only when the metrics or the options have changed.
    wanted = (run.path, workers.version, x_axis, smoothing, window)
    if st.session_state.get("worker_figures_of") != wanted:
        st.session_state["worker_figures"] = make_figures(workers, x_axis, smoothing, window, end)
        st.session_state["worker_figures_of"] = wanted
    for column, name, figure in zip(
        st.columns([3, 2]), ("Rates", "Shares"), st.session_state["worker_figures"], strict=True
    ):
        with column.container(border=True):
            frames.draw(
                figure, key=f"workers-{name}-{run.path}", label=f"{name} of the workers of {run.name}"
            )


def make_figures(
    workers: Workers, x_axis: str, smoothing: float, window: int | None, end: float
) -> tuple[Any, Any]:
    """Return the figure of the speeds and the figure of the shares."""
    lines = []
    for number, name in enumerate(workers.rows):
        step = workers.column(name, "step")
        curve = Curve(
            step, step, workers.column(name, "wall_time"), workers.column(name, "examples_per_second")
        )
        color = PALETTE[number % len(PALETTE)]
        lines.append(Line(name, last_steps(curve, window, end), color, smoothing))
    over = "time" if x_axis == "time" else "step"
    rates = curve_figure(lines, title="Examples per second of each worker", x_axis=over)
    shares = {
        name: [float(workers.column(name, share)[-LAST_ROWS:].mean()) for share in SHARES]
        for name in workers.rows
    }
    return rates, shares_figure(shares, title="Shares of time in the last minute")
