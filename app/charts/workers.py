"""The tasks of a cluster on the live page: their state, and each worker's speed, time and staleness."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app.charts import frames
from app.charts.board import PALETTE, Chart, Line
from app.charts.cluster_store import SHARES, ClusterStore, Task, Workers
from app.charts.metric_charts import Options
from app.charts.plotly_figures import shares_figure, staleness_figure
from app.charts.store import Curve, Snapshot
from app.charts.timeline import timeline_of
from labkit.analysis.curves import moving_average
from labkit.run_directory import RunDirectory

__all__ = ["show_shares", "show_tasks", "worker_rates"]

LAST_ROWS = 60  # of each worker: the last minute


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


def worker_rates(
    run: RunDirectory, options: Options, metrics: Snapshot
) -> tuple[int, Callable[[], list[Chart]]]:
    """Return a version of the workers' metrics, and what makes the chart of each worker's speed from them.

    There is no chart if no cluster trains the run, or nothing is known yet.
    """
    workers = _polled(_store(run.cluster_path), run) if run.cluster_path.is_dir() else Workers({}, 0)

    def charts() -> list[Chart]:
        timeline, lines = timeline_of(metrics), []
        for number, name in enumerate(workers.rows):
            step, rate = workers.column(name, "step"), workers.column(name, "examples_per_second")
            epoch = np.interp(step, timeline.step, timeline.epoch) if len(timeline.step) else step
            curve = Curve(step, epoch, workers.column(name, "wall_time"), rate)
            y = moving_average(rate, options.smoothing)
            lines.append(Line(name, timeline.x(curve, options.axis), y, PALETTE[number % len(PALETTE)]))
        return [Chart("workers", "Examples per second of each worker", lines)] if lines else []

    return workers.version, charts


def show_shares(run: RunDirectory) -> None:
    """Draw each worker's shares of time, and staleness. Draws nothing if there are no metrics yet."""
    workers = _polled(_store(run.cluster_path), run) if run.cluster_path.is_dir() else Workers({}, 0)
    if not workers.rows:
        return
    # Figures are made again only when the metrics have changed.
    wanted = (run.path, workers.version)
    if st.session_state.get("worker_figures_of") != wanted:
        st.session_state["worker_figures"] = make_figures(workers)
        st.session_state["worker_figures_of"] = wanted
    shares, staleness = st.session_state["worker_figures"]
    left, right = st.columns(2)
    _draw(left, "Shares", shares, run)
    if staleness is not None:
        _draw(right, "Staleness", staleness, run)


def _draw(place: Any, name: str, figure: Any, run: RunDirectory) -> None:
    with place.container(border=True):
        frames.draw(figure, key=f"workers-{name}-{run.path}", label=f"{name} of the workers of {run.name}")


def make_figures(workers: Workers) -> tuple[Any, Any]:
    """Return the figures of the shares and of the staleness; None where no update is stale."""
    shares = {
        name: [float(workers.column(name, share)[-LAST_ROWS:].mean()) for share in SHARES]
        for name in workers.rows
    }
    staleness = workers.staleness
    return (
        shares_figure(shares, title="Shares of time in the last minute"),
        staleness_figure(staleness, title="Staleness of the updates") if staleness else None,
    )
