"""The tasks of a cluster on the live page: their state, and each worker's speed, time and staleness."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app import state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, Window, encode
from app.charts.cluster_store import SHARES, ClusterStore, Task, Workers
from app.charts.metric_charts import Options
from app.charts.store import Curve, Snapshot
from app.charts.timeline import timeline_of
from labkit.analysis.curves import moving_average
from labkit.run_directory import RunDirectory

__all__ = ["show_shares", "show_tasks", "worker_rates"]

LAST_ROWS = 60  # of each worker: the last minute
MAX_STALENESS = 100_000  # that is drawn; a damaged row may tell any number

# The parts of a worker's time, as in ``SHARES``.
SHARE_KINDS = {"compute": PALETTE[0], "communication": PALETTE[1], "input, waiting": PALETTE[7]}
SHARES_STYLE = """<style>
.lk-shares { border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 8px;
  padding: 8px 10px 10px; font-size: 12.5px; }
.lk-shares b { font-size: 14px; font-weight: 600; }
.lk-shares-legend { display: flex; flex-wrap: wrap; gap: 0 12px; margin: 4px 0 6px; font-size: 12px; }
.lk-shares-legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 5px;
  vertical-align: middle; }
.lk-shares dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 6px 10px; margin: 0;
  padding: 0; align-items: center; }
.lk-shares dt, .lk-shares dd { font-size: 12.5px; }
.lk-shares dt { overflow-wrap: anywhere; }
.lk-shares dd { margin: 0; display: flex; gap: 10px; align-items: center; }
.lk-shares dd span { flex: 0 0 8.2em; text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.lk-shares-bar { display: flex; flex: 1 1 auto; height: 14px; border-radius: 3px; overflow: hidden;
  background: color-mix(in srgb, currentColor 8%, transparent); }
.lk-shares-bar i { display: block; height: 100%; }
</style>"""


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
        st.error(f"{state.as_code(run.cluster_path)} can't be read: {error.strerror}")
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
    # What is drawn is made again only when the metrics or the zoom have changed.
    key = component.key_of("workers-staleness", run.path)
    wanted = (run.path, workers.version, component.shown_window(key))
    if st.session_state.get("worker_charts_of") != wanted:
        st.session_state["worker_charts"] = (
            shares_html(last_shares(workers)),
            staleness_board(workers.staleness, run.name, wanted[-1]) if workers.staleness else None,
        )
        st.session_state["worker_charts_of"] = wanted
    shares, staleness = st.session_state["worker_charts"]
    left, right = st.columns(2)
    with left:
        st.html(shares)
    if staleness is not None:
        with right:
            component.draw(staleness, key=key)


def last_shares(workers: Workers) -> dict[str, list[float]]:
    """Return each worker's mean shares of time in its last minute, as in ``SHARES``; NaN if unknown."""
    return {
        name: [float(workers.column(name, share)[-LAST_ROWS:].mean()) for share in SHARES]
        for name in workers.rows
    }


def shares_html(shares: Mapping[str, Sequence[float]]) -> str:
    """Return the HTML of a bar for each worker with its shares of time.

    Args:
        shares: of compute, communication, and input or waiting, by the worker's name; NaN if unknown.
    """
    legend = "".join(
        f'<span><i style="background:{color}"></i>{kind}</span>' for kind, color in SHARE_KINDS.items()
    )
    rows = "".join(_shares_row(name, values) for name, values in shares.items())
    return (
        f'{SHARES_STYLE}<div class="lk-shares"><b>Shares of time in the last minute</b>'
        f'<div class="lk-shares-legend">{legend}</div><dl>{rows}</dl></div>'
    )


def _shares_row(name: str, values: Sequence[float]) -> str:
    texts = ["–" if value != value else f"{value:.0%}" for value in values]
    parts = "".join(
        f'<i style="width:{100 * max(0.0, value):.1f}%;background:{color}" title="{kind}: {text}"></i>'
        for value, text, (kind, color) in zip(values, texts, SHARE_KINDS.items(), strict=True)
        if value == value
    )
    words = ", ".join(f"{kind} {text}" for kind, text in zip(SHARE_KINDS, texts, strict=True))
    return (
        f"<dt>{escape(name)}</dt>"
        f'<dd><div class="lk-shares-bar" role="img" aria-label="{words}">{parts}</div>'
        f'<span aria-hidden="true">{" · ".join(texts)}</span></dd>'
    )


def staleness_board(
    counts: Mapping[str, Mapping[int, int]], name: str, window: Window | None = None
) -> bytes:
    """Return the board with, for each worker, the share of its updates at each staleness.

    Args:
        counts: updates at each staleness, by the worker's name.
        name: of the run.
        window: the part of the axis to show; None: all.
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
    chart = Chart("staleness", "Staleness of the updates", lines, "percent")
    title = "Updates by other workers since the weights were read"
    return encode([chart], axis="count", x_title=title, window=window, name=name)
