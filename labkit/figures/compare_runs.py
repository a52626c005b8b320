"""``CompareRuns``: the results of several runs, and which of two configurations is better."""

import os
import threading
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from labkit.analysis.curves import Curve, read_curves
from labkit.analysis.run_results.groups import Group, grouped, known_measures, result_rows, title_of
from labkit.analysis.run_results.results import MEASURES, read_results
from labkit.analysis.run_results.versus import told_of_two
from labkit.config.arguments import argument
from labkit.errors import InputError, short
from labkit.figures.runs import run_results
from labkit.figures.widgets import follow, is_interactive, run_directory_of
from labkit.tables import html_table

MAX_RUNS = 50
POLL_SECONDS = 2.0
ACTIVE = ("starting", "running", "stalled")


class CompareRuns:
    """Shows the results of runs as a figure and a table, and says which of two configurations is better.

    Runs that differ only in their seed are one configuration. Display it as the last expression of a cell, or
    with ``show()``. In JupyterLab, controls below the table choose the two configurations and the result;
    figure and table are replaced in place, also while the runs train.

    Args:
        runs: up to 50: runs, run directories, paths or names.
        seeds_together: whether runs that differ only in their seed are one configuration.
        by: the result to compare by, of ``labkit.analysis.run_results.results.MEASURES``; None: the first
            that is known, such as ``test_accuracy``.

    Raises InputError where there is no such run, for no or too many runs, and for an unknown ``by``.

    Example::

        CompareRuns([run for run in labkit.runs() if run.name.startswith("sweep")])
    """

    def __init__(
        self,
        runs: "Iterable[Any] | str | os.PathLike[str]",
        *,
        seeds_together: bool = True,
        by: str | None = None,
    ) -> None:
        chosen = [runs] if isinstance(runs, str) or not isinstance(runs, Iterable) else list(runs)
        allowed = "runs, run directories, paths or names"
        found = [run_directory_of(run, "a run", allowed) for run in chosen]
        if not 1 <= len(found) <= MAX_RUNS:
            raise InputError(f"{len(found)} runs were given; allowed: 1 to {MAX_RUNS}")
        usable = [name for name, measure in MEASURES.items() if measure.better]
        by = argument("by", by, str, optional=True, allowed=", ".join(usable))
        if by is not None and by not in usable:
            raise InputError(f"by is {short(by)}; allowed: {', '.join(usable)}")
        seeds_together = argument("seeds_together", seeds_together, bool)
        names = [run.name for run in found]
        self.runs = {str(run.path) if names.count(run.name) > 1 else run.name: run for run in found}
        self.seeds_together, self.by = seeds_together, by
        self.pair = (0, 1)  # the places of A and B among the groups

    def __repr__(self) -> str:
        return f"<comparison of {len(self.runs)} runs>"

    def groups(self) -> list[Group]:
        """Return the configurations with their results, read now."""
        return grouped(read_results(self.runs), seeds_together=self.seeds_together)

    def figure(self, groups: Sequence[Group] | None = None) -> Any:
        """Return the figure: a curve for each run, and one result of every run by configuration."""
        groups = self.groups() if groups is None else groups
        label, curves = _curves(groups)
        return run_results(groups, self._measure(groups), curves, label=label)

    def html(self, groups: Sequence[Group] | None = None) -> str:
        """Return the table of results and what is known of the two configurations, as HTML."""
        groups = self.groups() if groups is None else groups
        header, rows = result_rows(groups)
        told = "".join(f"<p style='margin:.3em 0;max-width:60em'>{line}</p>" for line in self._told(groups))
        return f"<div style='overflow-x:auto'>{html_table(header, rows)}</div>{told}"

    def show(self) -> None:
        """Display figure and table and, in JupyterLab, the controls."""
        from IPython.display import HTML, display

        groups = self.groups()
        figure = display(self.figure(groups), display_id=True)
        table = display(HTML(self.html(groups)), display_id=True)
        if is_interactive():
            panel = _Panel(self, figure, table, groups)
            display(panel.box)
            panel.start()

    _ipython_display_ = show

    def _measure(self, groups: Sequence[Group]) -> str:
        known = [name for name in known_measures(groups) if MEASURES[name].better]
        return self.by if self.by in known or not known else known[0]  # type: ignore[return-value]

    def _told(self, groups: Sequence[Group]) -> list[str]:
        """Return the lines below the table, as HTML."""
        if len(groups) < 2:
            return ["Give runs of a second configuration to compare with."]
        first, second = (groups[min(place, len(groups) - 1)] for place in self.pair)
        measure = self._measure(groups)
        headline, *others = told_of_two(first, second, measure, candidates=len(groups))
        return [f"<b>{escape(headline)}</b>", *map(escape, others)]


def _curves(groups: Sequence[Group]) -> tuple[str, dict[str, Curve]]:
    """Return what the curves are, and those of all runs by their labels."""
    read = {result.label: read_curves(result.run) for group in groups for result in group.results}
    for split, name in (("validation", "accuracy"), ("train", "loss")):
        found = {label: curves.curve(split, name) for label, curves in read.items()}
        if any(len(curve) for curve in found.values()):
            break
    return f"{'training' if split == 'train' else split} {name}", found


class _Panel:
    """The controls, and the thread that follows runs that train."""

    def __init__(self, shown: CompareRuns, figure: Any, table: Any, groups: Sequence[Group]) -> None:
        import ipywidgets

        self._shown, self._figure, self._table = shown, figure, table
        self._lock = threading.RLock()
        self._seen = _states(groups)
        self.first, self.second = (ipywidgets.Dropdown(description=name) for name in "AB")
        self.by = ipywidgets.Dropdown(description="by")
        self.single = ipywidgets.Checkbox(not shown.seeds_together, description="single runs", indent=False)
        self.note = ipywidgets.HTML()
        self._fill(groups)
        for control in (self.first, self.second, self.by, self.single):
            control.observe(self._changed, names="value")
        row = ipywidgets.HBox(
            [self.first, self.second, self.by, self.single], layout={"flex_flow": "row wrap"}
        )
        self.box = ipywidgets.VBox([row, self.note])

    def start(self) -> None:
        """Follow the runs from a thread, if any of them is active."""
        if any(state in ACTIVE for state, *_ in self._seen):
            follow("labkit compare", self._look, self._say, POLL_SECONDS)

    def update(self, groups: Sequence[Group] | None = None) -> None:
        """Replace figure and table by those of now."""
        with self._lock:
            groups = self._shown.groups() if groups is None else groups
            self._figure.update(self._shown.figure(groups))
            from IPython.display import HTML

            self._table.update(HTML(self._shown.html(groups)))

    def _fill(self, groups: Sequence[Group]) -> None:
        """Offer the configurations and results of now. A choice that is still there is kept."""
        names = [(group.title, place) for place, group in enumerate(groups)]
        self._filling = True
        try:
            for control, place in zip((self.first, self.second), self._shown.pair, strict=True):
                control.options = names
                control.value = min(place, len(names) - 1)
            measures = [name for name in known_measures(groups) if MEASURES[name].better]
            self.by.options = [(title_of(name, groups), name) for name in measures]
            if measures:
                self.by.value = self._shown._measure(groups)
        finally:
            self._filling = False

    def _changed(self, change: Any) -> None:
        if self._filling:
            return
        with self._lock:
            together = not self.single.value
            regroups = together != self._shown.seeds_together
            self._shown.seeds_together, self._shown.by = together, self.by.value
            self._shown.pair = (0, 1) if regroups else (self.first.value or 0, self.second.value or 0)
            groups = self._shown.groups()
            if regroups:
                self._fill(groups)
            self.update(groups)

    def _look(self) -> bool:
        """Show what has changed. Returns whether a run is active."""
        groups = self._shown.groups()
        seen = _states(groups)
        if seen != self._seen:
            self._seen = seen
            self.update(groups)
        self._say("")
        return any(state in ACTIVE for state, *_ in seen)

    def _say(self, text: str) -> None:
        self.note.value = escape(text)


def _states(groups: Sequence[Group]) -> list[tuple[str, Any, Any]]:
    """Return what changes when a run goes on."""
    results = [result for group in groups for result in group.results]
    return [(one.summary.state, one.summary.step, tuple(sorted(one.values.items()))) for one in results]
