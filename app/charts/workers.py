"""The tasks of a cluster on the live page: their state, and each worker's speed, time and staleness."""

from pathlib import Path
from typing import Any

import streamlit as st

from app.charts import frames
from app.charts.cluster_store import SHARES, ClusterStore, Task, Workers
from app.charts.lines import Line, last_steps
from app.charts.plotly_figures import PALETTE, curve_figure, shares_figure, staleness_figure
from app.charts.store import Curve
from labkit.run_directory import RunDirectory

__all__ = ["show_rates", "show_tasks"]

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


def show_rates(run: RunDirectory, x_axis: str, smoothing: float, window: int | None, end: float) -> None:
    """Draw each worker's speed, shares of time and staleness. Draws nothing if there are no metrics yet.

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
    rates, shares, staleness = st.session_state["worker_figures"]
    left, right = st.columns([3, 2])
    _draw(left, "Rates", rates, run)
    _draw(right, "Shares", shares, run)
    if staleness is not None:
        _draw(st, "Staleness", staleness, run)


def _draw(place: Any, name: str, figure: Any, run: RunDirectory) -> None:
    with place.container(border=True):
        frames.draw(figure, key=f"workers-{name}-{run.path}", label=f"{name} of the workers of {run.name}")


def make_figures(
    workers: Workers, x_axis: str, smoothing: float, window: int | None, end: float
) -> tuple[Any, Any, Any]:
    """Return the figures of the speeds, the shares and the staleness; None where no update is stale."""
    lines = []
    for number, name in enumerate(workers.rows):
        step = workers.column(name, "step")
        curve = Curve(
            step, step, workers.column(name, "wall_time"), workers.column(name, "examples_per_second")
        )
        color = PALETTE[number % len(PALETTE)]
        lines.append(Line(name, last_steps(curve, window, end), color, smoothing))
    over = "time" if x_axis == "time" else "step"
    rates = curve_figure(lines, title="Examples/s of each worker", x_axis=over)
    shares = {
        name: [float(workers.column(name, share)[-LAST_ROWS:].mean()) for share in SHARES]
        for name in workers.rows
    }
    return (
        rates,
        shares_figure(shares, title="Shares of time in the last minute"),
        staleness_figure(workers.staleness, title="Staleness of the updates") if workers.staleness else None,
    )
