"""The live page: the state of a run and its curves, updated while it trains."""

import math
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st

from app import state
from app.acting import buttons, ending, waiting
from app.charts import component, picked, workers
from app.charts.board import Chart
from app.charts.columns import MAX_COLUMNS
from app.charts.machine import MachineStore, machine_charts
from app.charts.metric_charts import (
    KNOWN,
    STANDARD,
    Options,
    board_of,
    controls,
    look_of,
    metric_chart,
    remember_window,
)
from app.charts.store import Snapshot
from app.images import batch
from app.images.text import plain
from app.report import downloads
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.metrics import evaluations_path

__all__ = ["page"]

REFRESH_SECONDS = 1.0  # of a run that trains

# The label, colour and icon of each state, and whether the page is refreshed every second.
STATES = {
    "starting": ("starting", "blue", ":material/hourglass_top:", True),
    "running": ("running", "green", ":material/play_circle:", True),
    "stalled": ("stalled", "orange", ":material/warning:", True),
    "lost": ("lost", "red", ":material/skull:", False),
    "finished": ("finished", "gray", ":material/check_circle:", False),
    "interrupted": ("interrupted", "orange", ":material/pause_circle:", False),
    "failed": ("failed", "red", ":material/error:", False),
    "no status": ("no status yet", "gray", ":material/help:", True),
}

MAX_ADDED = 12  # metrics of callbacks that are drawn without being chosen


def page() -> None:
    """Draw the page of the selected run."""
    waiting.show_start()
    run = state.selected_run()
    component.prepare()
    refreshes, step = _is_refreshed(run), picked.chosen_step(run)
    downloads.share_in_corner(run)  # not in the panel: a refresh would take back what a click asks for

    @st.fragment(run_every=REFRESH_SECONDS if refreshes else None, key="live")
    def panel() -> None:
        if picked.chosen_step(run) != step:
            st.rerun()
        _panel(run, step)
        if refreshes != _is_refreshed(run):  # it has ended, or is being resumed
            st.rerun()

    panel()
    if step is not None:
        batch.section(run, _metrics(run), step)
    if not refreshes:  # while the page is open, the run may be resumed or its checkpoints evaluated
        state.watch("status", lambda: (run.last_active(), _evaluated_at(run)))


def _liveness(status: Status | None) -> str:
    liveness = status.liveness() if status else "no status"
    return liveness if liveness in STATES else "no status"


def _is_refreshed(run: RunDirectory) -> bool:
    return STATES[_liveness(run.read_status())][3] or buttons.is_pending(run)


def _evaluated_at(run: RunDirectory) -> float:
    try:
        return evaluations_path(run.metrics_path).stat().st_mtime
    except OSError:
        return 0.0


def _metrics(run: RunDirectory) -> Snapshot | None:
    try:
        return state.curves(run)
    except OSError:  # the panel says so
        return None


def _panel(run: RunDirectory, step: int | None) -> None:
    status = run.read_status()
    try:
        metrics = state.curves(run)
    except OSError as error:
        st.error(f"`{run.metrics_path}` can't be read: {error.strerror}")
        return
    _header(run, status, metrics)
    _environment(run)
    workers.show_tasks(run)
    _figures(run, metrics, step)


def _header(run: RunDirectory, status: Status | None, metrics: Snapshot) -> None:
    liveness = _liveness(status)
    label, color, icon, _ = STATES[liveness]
    step = max(status.step if status else 0, metrics.last_step())
    total = status.total_steps if status else 0
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live-head"):
        st.subheader(run.name, anchor=False, width="content")
        st.badge(label, icon=icon, color=color)  # type: ignore[arg-type]
        if total > 0:
            st.progress(min(max(step / total, 0.0), 1.0), text=f"Step {step:,} of {total:,}", width=150)
        else:
            st.caption(f"Step {step:,}", width="content")
        buttons.draw(run, status, liveness)
    buttons.report(run)
    if status is None:
        there = run.status_path.exists()
        st.caption("`status.json` is damaged." if there else "The run has not written its status yet.")
    elif liveness == "lost":
        st.error(
            f"Process {status.pid} no longer exists and gave no reason.",
            icon=":material/skull:",
        )
    elif liveness == "stalled":
        age = duration(time.time() - status.heartbeat)
        st.warning(f"The last heartbeat was {age} ago. The process may hang, or its disk may be unavailable.")
    elif liveness == "failed":
        st.error(status.message or "The run failed and gave no reason.", icon=":material/error:")
    elif status.message:
        st.caption(status.message)
    if not buttons.is_pending(run):
        ending.show_end(run, status, liveness)
    st.html(facts_html(key_figures(status, liveness, metrics, state.seconds_of(run))))


def key_figures(
    status: Status | None, liveness: str, metrics: Snapshot, seconds: float | None
) -> list[tuple[str, str]]:
    """Return what the head of the page shows, each with its label. ``seconds``: the duration of the run."""
    best = metrics.curve("validation", "accuracy").y
    best = best[~_nan(best)]
    tests = metrics.curve("test", "accuracy")
    newest = int(tests.step.argmax()) if len(tests) else None
    test = None if newest is None else float(tests.y[newest])
    test_label = "Test accuracy"
    if newest is not None and tests.step[newest] != metrics.last_step():
        test_label += f" (step {tests.step[newest]:,.0f})"
    return [
        ("Training loss", _number(metrics.curve("train", "loss").last(), ".4g")),
        ("Validation accuracy", _number(metrics.curve("validation", "accuracy").last(), ".2%")),
        ("Best validation", _number(float(best.max()) if len(best) else None, ".2%")),
        (test_label, _number(test, ".2%")),
        ("Examples per second", _number(status.examples_per_second if status else None, ",.0f")),
        ("Duration", duration(seconds)),
        ("Time left", duration(status.eta_seconds if status and liveness == "running" else None)),
    ]


def facts_html(facts: Sequence[tuple[str, str]]) -> str:
    """Return labels and values in one row, which wraps on a narrow screen."""
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts)
    return f'<dl class="lk-facts">{cells}</dl>'


def _nan(values: Any) -> Any:
    return values != values


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "–"
    return (
        format(value, form) if math.isfinite(value) else str(value).replace("inf", "∞").replace("nan", "NaN")
    )


def duration(seconds: float | None) -> str:
    """Return a time span as text: ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``; – if unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if large != "h" else 24) or large == "d":
            return f"{whole // size} {large} {whole % size // part:02d} {small}"
    raise AssertionError("the last unit has no limit")


def _environment(run: RunDirectory) -> None:
    """Show the data set and devices of the run, and the notes that it recorded about them."""
    environment = run.read_environment()
    data = environment.get("data")
    data = data if isinstance(data, dict) else {}
    name, reason = data.get("dataset"), data.get("chosen_because")
    parts = [f"Data set: {plain(str(name))}"] if name else []
    devices = environment.get("description")
    if isinstance(devices, str) and devices:
        parts.append(f"Devices: {plain(devices)}")
    if parts:
        st.caption(" · ".join(parts))
    if banner := environment.get("banner"):
        st.caption(f":material/developer_board: {banner}")
    if name == "shapes" and data.get("asked_for") == "auto":
        chosen = str(reason or "").removeprefix("data set: ")
        st.caption(
            f":material/dataset: The data set is the built-in **shapes**, not CIFAR-10. {plain(chosen)}"
        )


def _figures(run: RunDirectory, metrics: Snapshot, step: int | None) -> None:
    names = [name for name in metrics.metrics() if name not in STANDARD]
    options, chosen = controls(lambda: _choose(run, names) if names else [])
    if metrics.damaged_lines:
        st.warning(f"Left out of `metrics.jsonl`: {counted(metrics.damaged_lines, 'damaged line')}.")
    if not metrics.tables:
        st.info("There are no metrics yet. The first point appears within a second of the first step.")
        return
    if metrics.leaves_out_metrics():
        st.warning(f"The run has very many metrics. The first {MAX_COLUMNS} of a split can be drawn.")
    _charts(run, metrics, [*STANDARD, *chosen], options, step)
    workers.show_shares(run)
    _machine(run, metrics, options)


def _choose(run: RunDirectory, names: list[str]) -> list[str]:
    """Draw the selection of further metrics. Those that a callback adds are selected when they appear.

    Returns the selected ones. They are kept beside the widget, because Streamlit gives a widget whose options
    change its default value again, and the options change while a run trains.
    """
    key = f"more-{run.path}"
    kept: list[str] = st.session_state.setdefault(f"{key}-kept", [])
    seen: set[str] = st.session_state.setdefault(f"{key}-seen", set())
    added = [name for name in names if name not in KNOWN and name not in seen]
    kept += added[: max(0, MAX_ADDED - len(kept))]
    seen.update(added)
    selected = [name for name in kept if name in names]
    st.session_state[key] = selected

    def keep() -> None:
        kept[:] = st.session_state[key]

    st.multiselect(
        "More metrics",
        names,
        key=key,
        on_change=keep,
        format_func=lambda name: look_of(name).title,
        placeholder="Choose metrics to draw",
        help=f"Metrics that a callback adds are drawn by themselves, up to {MAX_ADDED}.",
    )
    return selected


def _charts(
    run: RunDirectory, metrics: Snapshot, names: Sequence[str], options: Options, step: int | None
) -> None:
    version, rates = workers.worker_rates(run, options, metrics)

    def charts() -> list[Chart]:
        return [*(metric_chart(metrics, name, options) for name in names), *rates()]

    marks = picked.mark(metrics, options, step)
    board = board_of(metrics, options, run.name, (*names, version), charts, marks=marks, pick=picked.HINT)
    key = f"board-{run.path}"
    _draw(key, options, board, on_pick=picked.on_pick(key, run, metrics, options))


def _machine(run: RunDirectory, metrics: Snapshot, options: Options) -> None:
    """Draw what the processes of the run take of their machines, if that was recorded."""
    try:
        machine = _machine_store(run.path).poll()
    except OSError as error:
        st.error(f"What the run takes of its machine can't be read: {error.strerror}")
        return
    if machine.tables:
        st.markdown("**Machine**")
        version = ("machine", machine.version)
        board = board_of(
            metrics, options, run.name, version, lambda: machine_charts(machine, metrics, options.axis)
        )
        _draw(f"machine-{run.path}", options, board)


def _draw(key: str, options: Options, board: bytes, on_pick: Callable[[], None] | None = None) -> None:
    component.draw(board, key=key, on_window=lambda: remember_window(key, options), on_pick=on_pick)


@st.cache_resource(max_entries=16, show_spinner=False)
def _machine_store(path: Path) -> MachineStore:
    return MachineStore(RunDirectory(path))
