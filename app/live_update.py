"""The state of a run as the live page shows it, and what changes there while it trains."""

import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import state
from app.acting import buttons
from app.charts import component, picked, workers
from app.charts.board import Chart, Window
from app.charts.layout import Layout
from app.charts.machine import machine_charts
from app.charts.metric_charts import Options, board_of, look_of, metric_chart, window_in
from app.charts.store import SPLITS, Snapshot, timeline_of
from app.feed import Update
from app.markup import STATES, duration, facts_html, number_text, plain, progress_html, visible
from app.state import clean
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.metrics import evaluations_path
from labkit.run_directory.notes import read_notes
from labkit.run_directory.rows import number, result_name

READ_SECONDS = 0.2  # the longest that metrics are read before a page is drawn
HEAD_SECONDS = 2.0  # between two looks at the figures, on the pages without curves


def heading(run: RunDirectory, page: str = "") -> DeltaGenerator:
    """Draw the name and the state of a run in a row. Returns the row.

    Args:
        run: the run.
        page: what stands before the name. Its buttons and figures are then drawn, too. The figures follow the
            training, and the page is drawn again when the state changes. Live has its own.
    """
    title = " · ".join(filter(None, (visible(clean(run.name)), page, "labkit")))
    st.set_page_config(page_title=title)  # feed.js adds to it
    status = run.read_status()
    liveness = liveness_of(status)
    label, color, icon, _ = STATES[liveness]
    row = st.container(horizontal=True, vertical_alignment="center", gap="small", key="run-head")
    with row:
        name = plain(run.name)
        st.subheader(f"{page} · {name}" if page else name, anchor=False, width="content")
        st.badge(label, icon=icon, color=color)  # type: ignore[arg-type]
        notes = read_notes(run)
        for tag in notes.tags:
            st.badge(plain(tag), icon=":material/label:", color="gray")
        if notes.text:
            st.badge("note", icon=":material/sticky_note_2:", color="gray", help=plain(notes.text))
    if page:
        with row:
            buttons.draw(run, status, liveness)
        show_figures(_figures(run))
        buttons.report(run)
        seen = liveness, buttons.state_of(run)

        def update() -> Update:
            now = liveness_of(run.read_status()), buttons.state_of(run)
            return Update(_figures(run), is_stale=now != seen)

        if trains(run, liveness):
            component.follow(str(run.path), update, time.monotonic, HEAD_SECONDS)  # no answer waits for news
        else:
            watch_ended(run)
    return row


def show_figures(figures: str, place: DeltaGenerator | None = None) -> None:
    """Draw figures where the browser finds them, which replaces them by newer ones (feed.js)."""
    (place or st).html(f'<div class="lk-live">{figures}</div>')


def trains(run: RunDirectory, liveness: str) -> bool:
    """Return whether the browser shall fetch what changes of a run, several times in a few seconds."""
    return STATES[liveness][3] or buttons.is_pending(run)


def watch_ended(run: RunDirectory) -> None:
    """Draw the page again once the run is resumed, or its checkpoints are evaluated."""
    evaluations = evaluations_path(run.metrics_path)
    state.watch("ended", lambda: (run.last_active(), state.changed_at(evaluations), buttons.state_of(run)))


def _figures(run: RunDirectory) -> str:
    """Return progress and figures as HTML, of what can be read in a moment."""
    (found,) = state.follower((run.path,)).of([run], READ_SECONDS)
    rows = {split: found.results.get(split, {}) for split in ("validation", "test")}
    name = result_name(dict.fromkeys([*rows["validation"], *rows["test"]]))
    form, said = ".2%" if name == "accuracy" else ".4g", look_of(name).title.lower()
    facts = [
        ("Training loss", number_text(found.training_loss, ".4g")),
        *(
            (f"{split.capitalize()} {said}", number_text(number(row.get(name)), form))
            for split, row in rows.items()
        ),
        ("Examples per second", number_text(found.examples_per_second, ",.0f")),
        ("Duration", duration(found.duration)),
    ]
    known = [fact for fact in facts if fact[1] != "–"]
    return progress_html(found.step or 0, found.total_steps or 0) + facts_html(known)


@dataclass(frozen=True)
class Frame:
    """What the part of the live page depends on that isn't drawn every second."""

    refreshes: bool
    liveness: str
    message: str
    acting: Hashable
    environment: int  # when it was written
    names: Hashable  # of the metrics of each split
    readable: bool
    damaged_lines: int
    has_tasks: bool


def frame_of(run: RunDirectory, metrics: Snapshot | None, failure: str) -> Frame:
    """Return the frame. ``failure``: why the visitor's last action failed. Uses no Streamlit."""
    status = run.read_status()
    liveness = liveness_of(status)
    return Frame(
        refreshes=trains(run, liveness),
        liveness=liveness,
        message=status.message if status else "",
        acting=(status is None, failure, *buttons.state_of(run)),
        environment=state.changed_at(run.environment_path),
        names=tuple((split, *metrics.metrics([split])) for split in SPLITS) if metrics else (),
        readable=metrics is not None,
        damaged_lines=metrics.damaged_lines if metrics else 0,
        has_tasks=run.cluster_path.is_dir(),
    )


def liveness_of(status: Status | None) -> str:
    """Return a key of ``STATES``."""
    liveness = status.liveness() if status else "no status"
    return liveness if liveness in STATES else "no status"


def key_figures(
    status: Status | None, liveness: str, metrics: Snapshot, seconds: float | None
) -> list[tuple[str, str]]:
    """Return the known figures of the head, each with its label. ``seconds``: the duration of the run."""
    name = result_name(dict.fromkeys(metrics.metrics()))
    form, best_of = (".2%", np.max) if name == "accuracy" else (".4g", np.min)
    best = metrics.curve("validation", name).y
    best = best[~np.isnan(best)]
    tests = metrics.curve("test", name)
    own = metrics.own_test_step
    places = range(len(tests)) if own is None else (tests.step == own).nonzero()[0]
    place = int(places[-1]) if len(places) else None
    test = None if place is None else float(tests.y[place])
    said = look_of(name).title.lower()
    test_label = f"Test {said}"
    if place is not None and tests.step[place] != metrics.last_step():
        test_label += f" (step {tests.step[place]:,.0f})"
    facts = [
        ("Training loss", number_text(metrics.curve("train", "loss").last(), ".4g")),
        (f"Validation {said}", number_text(metrics.curve("validation", name).last(), form)),
        ("Best validation", number_text(float(best_of(best)) if len(best) else None, form)),
        (test_label, number_text(test, form)),
        ("Examples per second", number_text(status.examples_per_second if status else None, ",.0f")),
        ("Duration", duration(seconds)),
    ]
    if status and liveness == "running":
        facts.append(("Time left", duration(status.eta_seconds)))
    return [fact for fact in facts if fact[1] != "–"]


@dataclass(frozen=True)
class Drawn:
    """What the live page shows of a run. Of Streamlit it uses only what is kept for all visitors.

    Args:
        run: the run.
        options: of the charts.
        names: the metrics that have a chart, and the formulas after ``=``.
        step: whose batch is shown.
        zoom: the part of the axis that the visitor chose; None: the one that ``options`` follows.
        layout: of the charts.
        others: the runs that are laid over, by their labels.
    """

    run: RunDirectory
    options: Options
    names: tuple[str, ...]
    step: int | None
    zoom: Window | None
    layout: Layout = field(default_factory=Layout)
    others: tuple[tuple[str, RunDirectory], ...] = ()

    def update(self, shown: Frame, failure: str) -> Update:
        """Return the newest state. ``shown``, ``failure``: the frame of the page, and what it was made of."""
        metrics = state.curves(self.run)
        if frame_of(self.run, metrics, failure) != shown:
            return Update(is_stale=True)
        boards = dict([self.metric_board(metrics)]) if metrics.tables else {}
        if boards and (machine := self.machine_board(metrics)) is not None:
            boards |= dict([machine])
        return Update(self.figures(metrics), boards)

    def written(self) -> Hashable:
        """Return what changes with each row that is written."""
        runs = [self.run, *(run for _, run in self.others)]
        return tuple(state.changed_at(run.metrics_path) for run in runs)

    def figures(self, metrics: Snapshot) -> str:
        """Return progress and figures as HTML."""
        status = self.run.read_status()
        done = max(status.step if status else 0, metrics.last_step())
        facts = key_figures(status, liveness_of(status), metrics, metrics.duration)
        return progress_html(done, status.total_steps if status else 0) + facts_html(facts)

    def metric_board(self, metrics: Snapshot) -> tuple[str, bytes]:
        """Return the board of the metrics, after its key."""
        version, rates = workers.worker_rates(self.run, self.options, metrics)
        others: list[tuple[str, Snapshot]] = []
        for label, run in self.others:
            with suppress(OSError):  # which the panel has said
                others.append((label, state.curves(run)))

        def charts() -> list[Chart]:
            beside = {chart.key: chart for chart in rates()}
            titles = {name: look_of(name).title for name in self.names}
            shown = self.layout.arranged(titles | {key: chart.title for key, chart in beside.items()})
            return [beside.get(key) or metric_chart(metrics, key, self.options, others) for key in shown]

        marks = picked.notes(metrics, self.options, self.run) + picked.mark(metrics, self.options, self.step)
        versions = (self.names, self.layout, version, *((label, other.version) for label, other in others))
        return self._board("board", metrics, versions, charts, marks=marks, pick=picked.HINT)

    def machine_board(self, metrics: Snapshot) -> tuple[str, bytes] | None:
        """Return the board of what the run takes of its machine, after its key; None if nothing is shown.

        Raises OSError if it can't be read.
        """
        version, made = self._of_machine(metrics)
        shown = self.layout.arranged({key: chart.title for key, chart in made.items()})
        if not shown:
            return None
        return self._board("machine", metrics, (version, *shown), lambda: [made[key] for key in shown])

    def titles(self, metrics: Snapshot) -> dict[str, str]:
        """Return the titles of all charts, shown or not, by their keys."""
        titles = {name: look_of(name).title for name in self.names}
        titles |= dict([workers.RATES]) if self.run.cluster_path.is_dir() else {}
        with suppress(OSError):  # the page says it where the charts would be
            titles |= {key: chart.title for key, chart in self._of_machine(metrics)[1].items()}
        return titles

    def _of_machine(self, metrics: Snapshot) -> tuple[int, dict[str, Chart]]:
        machine, axis = state.machine(self.run), self.options.axis
        charts = metrics.memo.get(
            ("machine", machine.version, axis), lambda: machine_charts(machine, metrics, axis)
        )
        return machine.version, {chart.key: chart for chart in charts}

    def _board(
        self,
        kind: str,
        metrics: Snapshot,
        version: Hashable,
        charts: Callable[[], list[Chart]],
        **more: Any,
    ) -> tuple[str, bytes]:
        key = component.key_of(kind, self.run.path)
        window = window_in(self.zoom, self.options, timeline_of(metrics))
        board = board_of(
            metrics, self.options, self.run.name, version, charts, window=window, ident=key, **more
        )
        return key, board
