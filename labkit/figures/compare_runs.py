"""``CompareRuns``: the results of several runs, and which of two configurations is better. And the figure of
a comparison of models: accuracy over training time and over multiply-adds.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from labkit.analysis.curves import Curve, read_curves
from labkit.analysis.inference import Spread
from labkit.analysis.results import (
    MEASURES,
    Group,
    grouped,
    known_measures,
    read_results,
    result_rows,
    title_of,
)
from labkit.analysis.versus import told_of_two
from labkit.config.fields import argument
from labkit.errors import InputError, short
from labkit.experiments.comparison.read import Comparison, ModelMetrics
from labkit.figures.runs import run_results
from labkit.figures.style import GREY, OKABE_ITO, color_of, drawing
from labkit.figures.widgets import follow, is_interactive, run_directory_of
from labkit.plurals import counted
from labkit.tables import html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation


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
        by: the result to compare by, of ``labkit.analysis.results.MEASURES``; None: the first
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
        return self.by if self.by in known else next(iter(known), self.by or next(iter(MEASURES)))

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


MARKERS = "os^D"  # the next marker is used when all colours are taken
# Positions to try for a label: its offset from the marker in points, right and up, and its alignment.
LABEL_POSITIONS = (
    (7, 5, "left", "bottom"),
    (-7, 5, "right", "bottom"),
    (7, -5, "left", "top"),
    (-7, -5, "right", "top"),
    (0, 14, "center", "bottom"),
    (0, -14, "center", "top"),
    (7, 18, "left", "bottom"),
    (7, -18, "left", "top"),
)


def comparison(comparison: Comparison) -> Any:
    """Draw the accuracy of each model over its training time, and over its multiply-adds.

    Large markers are means over the seeds, error bars are sample standard deviations, and small markers are
    single runs. Models without a finished run are left out.

    Args:
        comparison: of ``labkit.experiments.comparison.read.read_comparison``.
    """
    from matplotlib.ticker import LogLocator

    accuracy = comparison.accuracy
    models = [model for model in comparison.models if model.spread(accuracy) is not None]
    label = accuracy.replace("_", " ")
    of = counted(len(models), "model")
    alt = f"{label.capitalize()} of {of} over training seconds and over multiply-adds"
    with drawing(9.5, 4.2, alt) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        left.set(title="Time", xlabel="seconds in training steps", ylabel=f"{label} (%)")
        right.set(title="Compute", xlabel="million multiply-adds of one image's forward pass (log)")
        left.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        for axis in (left, right):
            axis.grid(axis="y")
        if not models:
            left.text(0.5, 0.5, "no run is finished", transform=left.transAxes, ha="center", color=GREY)
            return figure
        time = _draw(left, models, "training_seconds", accuracy, unit=1)
        compute = _draw(right, models, "multiply_adds", accuracy, unit=1e6)
        left.margins(0.12)
        left.set_xlim(left=-0.03 * left.get_xlim()[1])
        right.set_xscale("log", subs=[])
        right.margins(0.12)
        right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        figure.draw_without_rendering()  # lays out the axes, which the positions of the labels depend on
        _place_labels(left, time)
        _place_labels(right, compute)
    return figure


def _draw(
    axis: "Axes", models: list[ModelMetrics], cost: str, accuracy: str, *, unit: float
) -> list["Annotation"]:
    """Draw a marker with error bars for each model. Returns the labels, which aren't placed yet."""
    labels = []
    for number, model in enumerate(models):
        x, y = model.spread(cost), model.spread(accuracy)
        if x is None or y is None:
            continue
        color = color_of(number)
        axis.errorbar(
            x.mean / unit,
            y.mean * 100,
            xerr=_error_bar(x, 1 / unit),
            yerr=_error_bar(y, 100),
            fmt=MARKERS[number // len(OKABE_ITO) % len(MARKERS)],
            color=color,
            markersize=6,
            elinewidth=1.2,
            capsize=3,
        )
        runs = [run for run in model.finished if None not in (getattr(run, cost), getattr(run, accuracy))]
        axis.plot(
            [getattr(run, cost) / unit for run in runs],
            [getattr(run, accuracy) * 100 for run in runs],
            "o",
            color=color,
            markersize=2.5,
            alpha=0.5,
        )
        labels.append(
            axis.annotate(
                model.name, (x.mean / unit, y.mean * 100), xytext=(0, 0), textcoords="offset points",
                color=color, fontsize=8,
            )
        )  # fmt: skip
    return labels


def _error_bar(spread: Spread, scale: float) -> float | None:
    return spread.std * scale if spread.std else None


def _place_labels(axis: "Axes", labels: list["Annotation"]) -> None:
    """Put each label where it overlaps the fewest markers and bars, and no other label if possible."""
    drawn = [box for container in axis.containers for box in _boxes(axis, container)]
    placed: list[Any] = []

    def covered(label: "Annotation", position: tuple[int, int, str, str]) -> int:
        _move(label, position)
        box = label.get_window_extent()
        outside = box.x0 < axis.bbox.x0 or box.x1 > axis.bbox.x1 or box.y0 < axis.bbox.y0
        return 100 * (outside + box.count_overlaps(placed)) + box.count_overlaps(drawn)

    # The best model comes first, so that its label gets the upper position.
    for label in sorted(labels, key=lambda label: -label.xy[1]):
        label.set_in_layout(False)
        _move(label, min(LABEL_POSITIONS, key=lambda position: covered(label, position)))
        placed.append(label.get_window_extent())


def _boxes(axis: "Axes", container: Any) -> list[Any]:
    """Return the boxes that a marker and its error bars cover, in display coordinates."""
    from matplotlib.transforms import Bbox

    mark, _, bars = container
    lines = [axis.transData.transform(mark.get_xydata())]
    lines += [axis.transData.transform(line) for bar in bars for line in bar.get_segments()]
    margins = [5, *[1] * (len(lines) - 1)]
    return [
        Bbox.from_extents(*(line.min(axis=0) - margin), *(line.max(axis=0) + margin))
        for line, margin in zip(lines, margins, strict=True)
    ]


def _move(label: "Annotation", position: tuple[int, int, str, str]) -> None:
    right, up, horizontal, vertical = position
    label.set_position((right, up))
    label.set_horizontalalignment(horizontal)  # type: ignore[arg-type]
    label.set_verticalalignment(vertical)  # type: ignore[arg-type]
