"""The tasks of a cluster on the live page: who gives signs of life, how fast each worker is, doing what."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app import frames
from app.charts import PALETTE, Line, curve_figure, last_steps, shares_figure
from app.curves import Curve, Floats
from labkit.distributed.heartbeat import Heartbeat, heartbeat_path, process_space, read_heartbeats
from labkit.run_directory import RunDirectory, process_alive
from labkit.run_directory.metrics import MetricsReader

__all__ = ["ClusterStore", "Task", "Workers", "show_rates", "show_tasks"]

SHARES = ("compute_fraction", "communication_fraction", "input_wait_fraction")
COLUMNS = ("wall_time", "step", "examples_per_second", *SHARES)
SILENT = 15.0  # seconds without a sign of life, of which there is one a second
MAX_ROWS = 7200  # of each worker, the last two hours; of a long run the beginning is left out
LAST_ROWS = 60  # of each worker, a row a second: the last minute
BLOCK_BYTES = 1 << 22


@dataclass(frozen=True)
class Task:
    """A task's last sign of life, and how many seconds ago it came."""

    beat: Heartbeat
    silent: float

    @property
    def state(self) -> str:
        """Return in words what it does, by what it said and by whether it still speaks."""
        beat = self.beat
        if beat.phase == "left":
            return "ended"
        if beat.process_space == process_space() and not process_alive(beat.pid):
            return "gone"
        if beat.phase == "lost":
            return "lost a peer"
        if self.silent > SILENT:
            return "silent"
        missing = [name for name, word in beat.seen.items() if not word]
        if beat.phase == "waiting" and missing:
            return "waits for " + ", ".join(missing)
        return "at work" if beat.phase in ("waiting", "serving", "training") else beat.phase


@dataclass(frozen=True)
class Workers:
    """What each worker wrote of its speed: float64 [rows, COLUMNS] by name. Later polls don't change it."""

    rows: dict[str, Floats]
    version: int  # grows with every change

    def column(self, worker: str, name: str) -> Floats:
        return self.rows[worker][:, COLUMNS.index(name)]


class ClusterStore:
    """Follows ``<run>/cluster``: the workers' files by byte offset, the signs of life as they are.

    Several sessions may poll at once. Clocks of other hosts are not trusted: a sign of life is as old as
    this process has seen it unchanged; only for the first look the file's own time must do.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._readers: dict[str, MetricsReader] = {}
        self._rows: dict[str, deque[tuple[float, ...]]] = {}
        self._lives: dict[str, tuple[tuple[str, int], float]] = {}
        self._workers = Workers({}, 0)

    def tasks(self) -> list[Task]:
        """Return the tasks that have ever given a sign of life here, in order of their names."""
        with self._lock:
            beats = read_heartbeats(self._folder).values()
            return [Task(beat, self._silence(beat)) for beat in sorted(beats, key=lambda beat: beat.name)]

    def _silence(self, beat: Heartbeat) -> float:
        life, now = (beat.incarnation, beat.counter), time.monotonic()
        known = self._lives.get(beat.name)
        if known is None:
            self._lives[beat.name] = (life, now - self._age(beat.name))
        elif known[0] != life:
            self._lives[beat.name] = (life, now)
        return now - self._lives[beat.name][1]

    def _age(self, name: str) -> float:
        try:
            return max(0.0, time.time() - heartbeat_path(self._folder, name).stat().st_mtime)
        except (OSError, ValueError):
            return 0.0

    def poll(self) -> Workers:
        """Read what was appended; return what the workers wrote. Raises OSError for an unreadable file."""
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
                while kept and kept[-1][1] > row["step"]:  # the run went on from an earlier step
                    kept.pop()
                kept.append(tuple(map(float, values)))  # type: ignore[arg-type]
                changed = True
            if reader.caught_up:
                return changed


@st.cache_resource(max_entries=16, show_spinner=False)
def _store(folder: Path) -> ClusterStore:
    return ClusterStore(folder)


def show_tasks(run: RunDirectory) -> None:
    """Draw the table of the tasks; nothing for a run that never was a cluster's."""
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
    # An asynchronous worker's figures are written by the chief, and its step is that of its last report.
    rates = beat.name in workers.rows
    return {
        "Task": beat.name,
        "State": task.state + (f": {beat.message}" if beat.phase == "lost" and beat.message else ""),
        "Examples per second": float(workers.column(beat.name, "examples_per_second")[-1]) if rates else None,
        "Step": int(workers.column(beat.name, "step")[-1]) if rates else beat.step or None,
        "Last sign of life": "–" if task.state == "ended" else f"{_ago(task.silent)} ago",
        "Address": beat.address,
        "Process": f"{beat.pid} on {beat.host}",
    }


def _ago(seconds: float) -> str:
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
    """Draw each worker's speed and shares; nothing where no worker has written any.

    Args:
        x_axis: ``time`` or, for all else, the step.
        smoothing, window, end: as for the other charts of the page.
    """
    workers = _polled(_store(run.cluster_path), run) if run.cluster_path.is_dir() else Workers({}, 0)
    if not workers.rows:
        return
    # As for the other charts: made anew only when there is something new.
    wanted = (run.path, workers.version, x_axis, smoothing, window)
    if st.session_state.get("worker_metrics_of") != wanted:
        st.session_state["worker_metrics"] = make_metrics(workers, x_axis, smoothing, window, end)
        st.session_state["worker_metrics_of"] = wanted
    for column, name, figure in zip(
        st.columns([3, 2]), ("Rates", "Shares"), st.session_state["worker_metrics"], strict=True
    ):
        with column.container(border=True):
            frames.draw(
                figure, key=f"workers-{name}-{run.path}", label=f"{name} of the workers of {run.name}"
            )


def make_metrics(
    workers: Workers, x_axis: str, smoothing: float, window: int | None, end: float
) -> tuple[Any, Any]:
    """Return the figure of the speeds and that of the shares."""
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
    return rates, shares_figure(shares, title="What each did in its last minute")
