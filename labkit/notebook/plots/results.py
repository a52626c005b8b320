"""The figure of several runs: their validation accuracy by step, and a result of each configuration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.analysis.curves import Curve
from labkit.analysis.inference import mean_interval
from labkit.analysis.run_results.groups import Group, title_of
from labkit.analysis.run_results.results import MEASURES
from labkit.notebook.plots.style import GREY, OKABE_ITO, new_figure, styled
from labkit.plurals import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["run_results"]

MAX_NAME = 44  # letters of a configuration's name in the figure


def run_results(
    groups: Sequence[Group], measure: str, curves: Mapping[str, Curve], *, label: str = "validation accuracy"
) -> Any:
    """Draw a curve for each run, and one result of every run by configuration.

    At the right, small markers are runs; where a configuration has several, the large marker is the mean and
    the bar its 95 % t interval. Configurations have a colour each, up to seven.

    Args:
        groups: the configurations.
        measure: of ``labkit.analysis.run_results.results.MEASURES``.
        curves: of the runs, by their labels.
        label: what the curves are.
    """
    runs = counted(sum(len(group.results) for group in groups), "run")
    title = title_of(measure, groups)
    with styled():
        alt = f"{label.capitalize()} of {runs} over the steps, and {title.lower()} of each configuration"
        figure = new_figure(9.5, max(3.2, 1.6 + 0.34 * len(groups)), alt)
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        for number, group in enumerate(groups):
            _draw_curves(left, group, curves, _color(number, len(groups)))
        left.set(title=label.capitalize(), xlabel="step")
        left.grid(axis="y")
        left.set_axisbelow(True)
        _draw_results(right, groups, measure)
        unit = MEASURES[measure].unit
        several = any(len(group.values(measure)) > 1 for group in groups)
        right.set(title=title, xlabel=f"{unit}; bar: 95 % interval of the mean" if several else unit)
    return figure


def _color(number: int, count: int) -> str:
    return OKABE_ITO[number] if count <= len(OKABE_ITO) else GREY


def _draw_curves(axis: "Axes", group: Group, curves: Mapping[str, Curve], color: str) -> None:
    for result in group.results:
        curve = curves.get(result.label)
        if curve is not None and len(curve):
            finite = np.where(np.isfinite(curve.value), curve.value, np.nan)
            marker = "o" if len(curve) < 30 else None
            axis.plot(
                curve.step, finite, color=color, linewidth=1.1, marker=marker, markersize=2.5, alpha=0.8
            )


def _draw_results(axis: "Axes", groups: Sequence[Group], measure: str) -> None:
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    for number, group in enumerate(groups):
        values = scale * np.array(group.values(measure))
        color = _color(number, len(groups))
        if len(values) > 1:
            found = mean_interval(values)
            axis.plot(values, np.full(len(values), number), "o", color=color, markersize=3.5, alpha=0.5)
            axis.plot([found.low, found.high], [number, number], color=color, linewidth=1.6)
            axis.plot(found.mean, number, "D", color=color, markersize=6)
        elif len(values):
            axis.plot(values, [number], "o", color=color, markersize=6)
    names = [group.title for group in groups]
    # A dollar sign would begin a formula.
    short = [name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…" for name in names]
    axis.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in short])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.yaxis.tick_right()
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")
    axis.set_axisbelow(True)
