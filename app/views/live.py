"""The live page: the state of a run and its curves, updated while it trains."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from app.run_facts import duration, facts_html, key_figures, progress_html
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
    """Draw the page of the selected run.

    What is drawn every second is kept small: the browser needs a millisecond or more for each element, on the
    machine that trains, often. Buttons, options and notes are drawn with the page, when they change.
    """
    waiting.show_start()
    run = state.selected_run()
    component.prepare()
    step = picked.chosen_step(run)
    downloads.share_in_corner(run)
    metrics = _metrics(run)
    shown = _frame(run, metrics)
    _head(run)
    options, chosen = _options(run, metrics)

    @st.fragment(run_every=REFRESH_SECONDS if shown.refreshes else None, key="live")
    def panel() -> None:
        metrics = _metrics(run)
        if picked.chosen_step(run) != step or _frame(run, metrics) != shown:
            st.rerun()
        _panel(run, metrics, options, chosen, step)

    panel()
    if step is not None:
        batch.section(run, metrics, step)
    if not shown.refreshes:  # while the page is open, the run may be resumed or its checkpoints evaluated
        state.watch("status", lambda: (run.last_active(), _written(evaluations_path(run.metrics_path))))


@dataclass(frozen=True)
class _Frame:
    """What the part of the page depends on that isn't drawn every second."""

    refreshes: bool
    liveness: str
    message: str
    acting: Hashable
    environment: float  # when it was written
    names: tuple[str, ...]
    readable: bool


def _frame(run: RunDirectory, metrics: Snapshot | None) -> _Frame:
    status = run.read_status()
    liveness = _liveness(status)
    return _Frame(
        refreshes=STATES[liveness][3] or buttons.is_pending(run),
        liveness=liveness,
        message=status.message if status else "",
        acting=(status is None, *buttons.state_of(run)),
        environment=_written(run.environment_path),
        names=() if metrics is None else tuple(metrics.metrics()),
        readable=metrics is not None,
    )


def _liveness(status: Status | None) -> str:
    liveness = status.liveness() if status else "no status"
    return liveness if liveness in STATES else "no status"


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _metrics(run: RunDirectory) -> Snapshot | None:
    try:
        return state.curves(run)
    except OSError:  # the panel says so
        return None


def _head(run: RunDirectory) -> None:
    """Draw the name and state of the run, what can be done with it, and why it ended, if it did."""
    status = run.read_status()
    liveness = _liveness(status)
    label, color, icon, _ = STATES[liveness]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live-head"):
        st.subheader(plain(run.name), anchor=False, width="content")
        st.badge(label, icon=icon, color=color)  # type: ignore[arg-type]
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
    elif liveness == "failed":
        st.error(status.message or "The run failed and gave no reason.", icon=":material/error:")
    elif status.message and liveness != "stalled":
        st.caption(status.message)
    if not buttons.is_pending(run):
        ending.show_end(run, status, liveness)
    _environment(run)


def _panel(
    run: RunDirectory, metrics: Snapshot | None, options: Options, chosen: Sequence[str], step: int | None
) -> None:
    """Draw what changes every second: progress, figures and charts."""
    if metrics is None:
        st.error(f"`{run.metrics_path}` can't be read: {_why_unreadable(run)}")
        return
    status = run.read_status()
    liveness = _liveness(status)
    if status and liveness == "stalled":
        age = duration(time.time() - status.heartbeat)
        st.warning(f"The last heartbeat was {age} ago. The process may hang, or its disk may be unavailable.")
    done = max(status.step if status else 0, metrics.last_step())
    facts = facts_html(key_figures(status, liveness, metrics, state.seconds_of(run)))
    st.html(progress_html(done, status.total_steps if status else 0) + facts)
    workers.show_tasks(run)
    if metrics.damaged_lines:
        st.warning(f"Left out of `metrics.jsonl`: {counted(metrics.damaged_lines, 'damaged line')}.")
    if not metrics.tables:
        st.info("There are no metrics yet. The first point appears within a second of the first step.")
        return
    _charts(run, metrics, [*STANDARD, *chosen], options, step)
    workers.show_shares(run)
    _machine(run, metrics, options)


def _why_unreadable(run: RunDirectory) -> str:
    try:
        state.curves(run)
    except OSError as error:
        return error.strerror or str(error)
    return "try again"


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


def _options(run: RunDirectory, metrics: Snapshot | None) -> tuple[Options, list[str]]:
    """Draw the options of the charts. Returns them, and the metrics that are drawn beside the usual ones."""
    names = [name for name in metrics.metrics() if name not in STANDARD] if metrics else []
    options, chosen = controls(lambda: _choose(run, names) if names else [])
    if metrics is not None and metrics.leaves_out_metrics():
        st.warning(f"The run has very many metrics. The first {MAX_COLUMNS} of a split can be drawn.")
    return options, chosen


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
