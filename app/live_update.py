"""What changes every second on the live page: figures and charts."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from app import state
from app.charts import component, picked, workers
from app.charts.board import Chart, Window
from app.charts.machine import MachineStore, machine_charts
from app.charts.metric_charts import Options, board_of, metric_chart, window_in
from app.charts.store import Snapshot
from app.charts.timeline import timeline_of
from app.feed import Update
from app.run_facts import facts_html, key_figures, progress_html
from app.run_state import Frame, frame_of, liveness_of
from labkit.run_directory import RunDirectory

__all__ = ["Drawn"]


@dataclass(frozen=True)
class Drawn:
    """What the live page shows of a run. Of Streamlit it uses only what is kept for all visitors.

    Args:
        run: the run.
        options: of the charts.
        names: the metrics that have a chart.
        step: whose batch is shown.
        zoom: the part of the axis that the visitor chose; None: the one that ``options`` follows.
    """

    run: RunDirectory
    options: Options
    names: tuple[str, ...]
    step: int | None
    zoom: Window | None

    def update(self, shown: Frame, failure: str) -> Update:
        """Return the newest state. ``shown``, ``failure``: the frame of the page, and what it was made of."""
        metrics = state.curves(self.run)
        if frame_of(self.run, metrics, failure) != shown:
            return Update(is_stale=True)
        boards = dict([self.metric_board(metrics)]) if metrics.tables else {}
        if boards and (machine := self.machine_board(metrics)) is not None:
            boards |= dict([machine])
        return Update(self.figures(metrics), boards)

    def figures(self, metrics: Snapshot) -> str:
        """Return progress and figures as HTML."""
        status = self.run.read_status()
        done = max(status.step if status else 0, metrics.last_step())
        facts = key_figures(status, liveness_of(status), metrics, metrics.duration)
        return progress_html(done, status.total_steps if status else 0) + facts_html(facts)

    def metric_board(self, metrics: Snapshot) -> tuple[str, bytes]:
        """Return the board of the metrics, after its key."""
        version, rates = workers.worker_rates(self.run, self.options, metrics)

        def charts() -> list[Chart]:
            return [*(metric_chart(metrics, name, self.options) for name in self.names), *rates()]

        marks = picked.mark(metrics, self.options, self.step)
        return self._board("board", metrics, (*self.names, version), charts, marks=marks, pick=picked.HINT)

    def machine_board(self, metrics: Snapshot) -> tuple[str, bytes] | None:
        """Return the board of what the run takes of its machine, after its key; None if nothing is known.

        Raises OSError if it can't be read.
        """
        machine = _machine_store(self.run.path).poll()
        if not machine.tables:
            return None
        version = ("machine", machine.version)
        return self._board(
            "machine", metrics, version, lambda: machine_charts(machine, metrics, self.options.axis)
        )

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


@st.cache_resource(max_entries=16, show_spinner=False)
def _machine_store(path: Path) -> MachineStore:
    return MachineStore(RunDirectory(path))
