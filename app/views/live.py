"""The live page: the state of a run and its curves, updated while it trains."""

import time
from dataclasses import replace
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import live_panel, run_files, state
from app.acting import buttons
from app.address import live_address
from app.charts import component, picked, workers
from app.charts.metric_charts import remember_window, zoom_of
from app.charts.store import Snapshot, timeline_of
from app.live_update import STATES, Drawn, frame_of, heading, liveness_of, show_figures, watch_ended
from app.markup import plain, visible
from app.report import downloads
from app.state import clean
from labkit.config.config import recorded_by
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import Relative, family_of

REFRESH_SECONDS = 1.0  # of a run that trains

NEEDS_ITS_LOG = ("failed", "lost")  # it is unfolded above the charts


def page() -> None:
    """Draw the page of the selected run.

    Streamlit draws it again only when a part of its frame changes: the browser needs a millisecond or more
    for each element, often on the machine that trains. Figures and charts are fetched when a row is written
    (app/feed.py). The table of a cluster's tasks is Streamlit's, so its page is drawn every second.
    """
    buttons.show_start()
    run = state.selected_run()
    component.prepare()
    step, scrolls = picked.follow_step(run), picked.scrolls()
    metrics, _ = _metrics(run)
    failure = buttons.failure_of(run)
    shown = frame_of(run, metrics, failure)
    figures = _head(run)
    with st.container(key="live-share", width="content"):  # outside of what a fragment refreshes
        downloads.share([run], "live")
    drawn, body = live_panel.draw(run, metrics, step)

    @st.fragment(run_every=REFRESH_SECONDS if shown.refreshes and shown.has_tasks else None, key="live")
    def draw() -> None:
        metrics, why = _metrics(run)
        asked = picked.chosen_step(run), picked.scrolls()
        if asked != (step, scrolls) or frame_of(run, metrics, failure) != shown:
            st.rerun()
        if metrics is None:
            st.error(f"{state.as_code(run.metrics_path)} can't be read: {why}")
            return
        now = replace(drawn, zoom=zoom_of(drawn.options, timeline_of(metrics)))
        show_figures(now.figures(metrics), figures)
        _panel(now, metrics)
        follows = shown.refreshes or any(STATES[liveness_of(one.read_status())][3] for _, one in drawn.others)
        if follows and not shown.has_tasks:
            component.follow(str(run.path), lambda: now.update(shown, failure), now.written)

    with body:
        with st.container(key="live-charts"):
            draw()
        if step is not None:
            from app.images import batch  # which takes 0.15 s, more than all else that this page needs

            with st.container(key="live-drawer"):
                batch.section(run, metrics, step)
    _data_and_devices(run)
    if shown.liveness not in NEEDS_ITS_LOG:
        run_files.section(run, follows=shown.refreshes)
    if not shown.refreshes:
        watch_ended(run)


def _metrics(run: RunDirectory) -> tuple[Snapshot | None, str]:
    """Return the metrics; None, and why, if they can't be read."""
    try:
        return state.curves(run), ""
    except OSError as error:
        return None, error.strerror or str(error)


def _head(run: RunDirectory) -> DeltaGenerator:
    """Draw the name and state of the run, what can be done with it, and why it ended, if it did.

    Returns the place of its figures.
    """
    status = run.read_status()
    liveness = liveness_of(status)
    said = status.message if status and status.message != counted(status.step, "step") else ""
    with heading(run):
        if liveness == "running" and said:  # in this row, so that it moves no chart
            st.caption(plain(said), width="content")
        for label, sentence in _notes(run):
            st.badge(label, icon=":material/info:", color="orange", help=sentence)
        buttons.draw(run, status, liveness)
    figures = st.empty()
    buttons.report(run)
    if status is None:
        there = run.status_path.exists()
        st.caption("`status.json` is damaged." if there else "The run has not written its status yet.")
    elif liveness == "lost":
        st.error(f"Process {status.pid} no longer exists and gave no reason.", icon=":material/skull:")
    elif liveness == "failed":
        st.error(plain(status.message) or "The run failed and gave no reason.", icon=":material/error:")
    elif said and liveness not in ("running", "stalled"):
        st.caption(plain(said))
    if not buttons.is_pending(run):
        buttons.show_end(run, status, liveness)
    if liveness in NEEDS_ITS_LOG:
        run_files.section(run, follows=False, unfolded=not recorded_by(run))  # which has no log
    show_family(run)
    return figures


def _panel(drawn: Drawn, metrics: Snapshot) -> None:
    """Draw what changes every second below the figures."""
    run = drawn.run
    status = run.read_status()
    if status and liveness_of(status) == "stalled":
        last = time.strftime("%d %B, %H:%M:%S", time.localtime(status.heartbeat))
        why = "The process may hang, or its disk may be unavailable."
        if run.pulled_path.exists():
            why = f"`labkit pull`, which copies the run from {state.as_code(status.host)}, may have ended."
        st.warning(f"The last heartbeat was at {last}. {why}")
    workers.show_tasks(run)
    if metrics.damaged_lines:
        st.warning(f"Left out of `metrics.jsonl`: {counted(metrics.damaged_lines, 'damaged line')}.")
    if not metrics.tables:
        st.info("There are no metrics yet. The first point appears within a second of the first step.")
        return
    key, board = drawn.metric_board(metrics)
    picks = picked.on_pick(key, run, metrics, drawn.options)
    component.draw(board, key=key, on_window=lambda: remember_window(key, drawn.options), on_pick=picks)
    workers.show_shares(run)
    try:
        machine = drawn.machine_board(metrics)
    except OSError as error:
        st.error(f"What the run takes of its machine can't be read: {error.strerror}")
        return
    if machine is not None:
        st.markdown("**Machine**")
        name, drawing = machine
        component.draw(drawing, key=name, on_window=lambda: remember_window(name, drawn.options))


def _notes(run: RunDirectory) -> list[tuple[str, str]]:
    """Return what a reader has to know of the run's devices and data set: some words, and a sentence."""
    environment = run.read_environment()
    data = environment.get("data")
    data = data if isinstance(data, dict) else {}
    notes = [("simulated devices", plain(str(banner)))] if (banner := environment.get("banner")) else []
    if data.get("dataset") == "shapes" and data.get("asked_for") == "auto":
        chosen = str(data.get("chosen_because") or "").removeprefix("data set: ")
        sentence = f"The data set is the built-in **shapes**, not CIFAR-10. {plain(chosen)}"
        notes.append(("shapes, not CIFAR-10", sentence))
    return notes


def _data_and_devices(run: RunDirectory) -> None:
    """Show the data set and devices of the run, where it recorded them, and what has to be known of them."""
    for _, sentence in _notes(run):
        st.caption(sentence)
    environment = run.read_environment()
    data, devices = environment.get("data"), environment.get("description")
    name = data.get("dataset") if isinstance(data, dict) else None
    parts = [f"Data set: {plain(str(name))}"] if name else []
    parts += [f"Devices: {plain(devices)}"] if isinstance(devices, str) and devices else []
    if parts:
        st.caption(" · ".join(parts))


DEEPEST = 8  # generations that are indented: a phone is narrow


def show_family(run: RunDirectory) -> None:
    """Draw the tree of the runs that share steps with ``run``; nothing if there is no other."""
    listed = state.listed_runs()
    family = family_of(run, listed.values())
    if len(family) < 2:
        return
    labels = {one.path: label for label, one in listed.items()}
    lines = [_line(relative, run, labels.get(relative.run.path)) for relative in family]
    with st.expander(f"Family of {counted(len(family), 'run')}", icon=":material/account_tree:"):
        st.html(f'<ul class="lk-family">{"".join(lines)}</ul>')


def _line(relative: Relative, shown: RunDirectory, label: str | None) -> str:
    name = escape(visible(clean(relative.run.name)))
    if relative.run.path == shown.path:
        name = f'<strong aria-current="page">{name}</strong>'
    else:
        address = live_address(label or clean(relative.run.path))
        name = f'<a href="{escape(address, quote=True)}">{name}</a>'
    origin = ""
    if relative.lineage is not None:
        changes = escape(visible(clean(relative.lineage.describe())))
        origin = f" from step {relative.lineage.step:,}" + (f": {changes}" if changes else "")
    indent = 1.5 * min(relative.depth, DEEPEST)
    return f'<li style="margin-left: {indent}rem">{name}{origin}</li>'
