"""The curves of the compared runs: of each configuration the mean over its seeds, and their range.

Of many configurations, the chosen ones stand out from thin lines.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import streamlit as st

from app import state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
from app.charts.metric_charts import controls, look_of, metric_lines, remember_window, window_in, zoom_of
from app.charts.store import AXES, SPLITS, Snapshot, timeline_of
from app.markup import plain
from labkit.analysis.results import Group, Result
from labkit.plurals import counted, listed

REFRESH_SECONDS = 5.0
FEW = len(PALETTE)  # configurations with a colour of their own; of more, only the chosen ones stand out
POINTS = 12_800  # of all lines of a chart that are sent, about
GREY = PALETTE[-1]

VALUES = {
    "Training loss": ("train", "loss"),
    "Validation loss": ("validation", "loss"),
    "Validation accuracy": ("validation", "accuracy"),
    "Training accuracy": ("train", "accuracy"),
    "Validation mean absolute error": ("validation", "mean_absolute_error"),
    "Learning rate": ("train", "learning_rate"),
    "Examples per second": ("train", "examples_per_second"),
}

MEAN_AND_RANGE = (
    "the line is the mean at the steps that all runs have, the band goes from the lowest to the highest. "
    "Before and after these steps, single runs are thin."
)
Curves = list[tuple[Result, Snapshot]]


def show_curves(groups: Sequence[Group], chosen: Sequence[str]) -> None:
    """Draw the curves of all runs, and again every five seconds.

    Args:
        groups: the compared configurations.
        chosen: the names of those that stand out where there are many runs, A and B first.
    """
    component.prepare()
    results = [result for group in groups for result in group.results]
    of_numbers = [result.summary.mean_absolute_error is not None for result in results]
    missing = {"accuracy": all(of_numbers), "mean_absolute_error": not any(of_numbers)}
    offered = [name for name, (_, metric) in VALUES.items() if not missing.get(metric)]
    second = "Validation mean absolute error" if all(of_numbers) else "Validation accuracy"
    on_time = "On an axis of time, single runs are thin, too. *Single runs* shows each."
    shown = st.pills(
        "Curves",
        offered,
        selection_mode="multi",
        default=["Training loss", second],
        key="curves",
        bind="query-params",
        help=f"Of runs that differ only in their seed: {MEAN_AND_RANGE} {on_time}",
    )
    colors = colors_of(groups, chosen)
    st.fragment(_board, run_every=REFRESH_SECONDS, key="compare")(groups, colors, shown)


def colors_of(groups: Sequence[Group], chosen: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Return, by the label of each run, its colour and whether it stands out.

    Up to eight configurations each have a colour, which their runs share. Of more, the chosen ones have one
    and all others are grey.
    """
    named = [group.name for group in groups]
    if len(groups) > FEW:
        named = [name for name in chosen if name in named][: FEW - 1]
    places = {name: place for place, name in enumerate(named)}
    return {
        result.label: (PALETTE[places[group.name]] if group.name in places else GREY, group.name in places)
        for group in groups
        for result in group.results
    }


def mean_and_range(name: str, lines: Sequence[Line]) -> list[Line]:
    """Return the mean of several lines at the places that all have, between the lowest and the highest.

    Lines without such places stay as they are, thin: on an axis of time each run has its own.
    """
    lines = [line for line in lines if len(line.x)]
    if len(lines) < 2:
        return list(lines)
    x = reduce(lambda one, other: one if np.array_equal(one, other) else np.intersect1d(one, other),
               [line.x for line in lines])  # fmt: skip
    if len(x) < min(2, max(len(line.x) for line in lines)):
        return [replace(line, style="thin") for line in lines]
    # Where some haven't begun or have ended, and others have points.
    rest = [(line, part) for line in lines for part in (line.x < x[0], line.x > x[-1])]
    values = np.stack([line.y[np.searchsorted(line.x, x)] for line in lines])
    first, lowest, highest = lines[0], f"{name}, lowest", f"{name}, highest"
    with np.errstate(invalid="ignore"):  # of infinities
        mean = values.mean(axis=0)
    return [
        Line(highest, x, values.max(axis=0), first.color, "edge", band=lowest),
        Line(lowest, x, values.min(axis=0), first.color, "edge"),
        replace(first, name=name, x=x, y=mean),
        *(
            Line(line.name, line.x[part], line.y[part], line.color, "thin")
            for line, part in rest
            if any(part)
        ),
    ]


def without(split: str, value: str, found: Sequence[tuple[str, Snapshot]]) -> list[str]:
    """Return the labels of the runs whose metrics lack this one, sorted."""
    return sorted(label for label, metrics in found if value not in metrics.metrics([split]))


def _board(groups: Sequence[Group], colors: dict[str, tuple[str, bool]], shown: list[str]) -> None:
    curves: list[tuple[Group, Curves]] = []
    for group in groups:
        found: Curves = []
        for result in group.results:
            try:
                found.append((result, state.curves(result.run)))
            except OSError as error:
                st.error(f"{state.as_code(result.run.metrics_path)} can't be read: {error.strerror}")
        curves += [(group, found)] if found else []
    snapshots = [snapshot for _, found in curves for _, snapshot in found]
    place = st.container()
    more = _more_metrics(snapshots)  # below the charts, which come first
    with place:
        options, _ = controls(dict.fromkeys(name for one in snapshots for name in one.full_names()))
    # What stands out is drawn last, above the thin lines.
    curves.sort(key=lambda one: colors[one[1][0][0].label][1])
    charts, missing = [], list[str]()
    for title, (split, value) in ({name: VALUES[name] for name in VALUES if name in shown} | more).items():
        lines: list[Line] = []
        for group, found in curves:
            drawn: list[Line] = []
            for result, snapshot in found:
                color, outstanding = colors[result.label]
                label = state.clean(result.label)
                drawn += metric_lines(snapshot, split, value, label, color, options, raw=False)
            if not outstanding:
                drawn = [replace(line, style="thin") for line in drawn]
            elif len(found) > 1 and options.axis in AXES:
                several = sum(len(line.x) > 0 for line in drawn)
                drawn = mean_and_range(f"{state.clean(group.name)} ({counted(several, 'run')})", drawn)
            lines += drawn
        look = look_of(value)
        logarithmic = options.is_logarithmic(value, lines)
        charts.append(Chart(f"{split}-{value}", title, lines, look.unit, logarithmic, named=True))
        labelled = [(run.label, one) for _, found in curves for run, one in found]
        if labels := without(split, value, labelled):
            missing.append(f"{title} isn't recorded by {listed(labels)}.")
    for sentence in filter(None, [*missing, options.smoothing_in_words]):
        place.caption(plain(state.clean(sentence)))
    timeline = timeline_of(snapshots[0]) if snapshots else None
    board = encode(
        charts,
        axis=options.axis_kind,
        x_title=options.axis_title,
        window=window_in(zoom_of(options, timeline), options, timeline),
        name="comparison",
        height=300,
        points=min(1600, max(200, POINTS // max(1, len(snapshots)))),
    )
    with place:
        component.draw(
            board, key="compare-board", on_window=lambda: remember_window("compare-board", options)
        )


def _more_metrics(snapshots: list[Snapshot]) -> dict[str, tuple[str, str]]:
    """Draw the selection of all other metrics. Returns split and metric of the chosen ones by their title."""
    options = {
        f"{look_of(value).title} ({split})": (split, value)
        for split in SPLITS
        for snapshot in snapshots
        for value in snapshot.metrics([split])
        if (split, value) not in VALUES.values()
    }
    chosen = st.multiselect(
        "More curves", list(options), key="more", bind="query-params", placeholder="Choose metrics to draw"
    )
    return {title: options[title] for title in chosen}
