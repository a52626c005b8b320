"""The curves of the compared runs. Of many runs, the chosen ones stand out from thin lines."""

from collections.abc import Sequence

import streamlit as st

from app import state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
from app.charts.metric_charts import axis_kind, controls, look_of, metric_lines, remember_window, window_of
from app.charts.store import AXES, SPLITS, Snapshot, timeline_of
from labkit.analysis.results import Group, Result

REFRESH_SECONDS = 5.0
FEW = len(PALETTE)  # runs with a colour of their own; of more, only the chosen ones stand out
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

Curves = list[tuple[Result, Snapshot]]


def show_curves(groups: Sequence[Group], chosen: Sequence[str]) -> None:
    """Draw the curves of all runs, and again every five seconds.

    Args:
        groups: the compared configurations.
        chosen: the names of those that stand out where there are many runs, A and B first.
    """
    component.prepare()
    shown = st.pills(
        "Curves",
        list(VALUES),
        selection_mode="multi",
        default=["Training loss", "Validation accuracy"],
        key="curves",
        bind="query-params",
    )
    colors = colors_of(groups, chosen)
    results = [result for group in groups for result in group.results]

    @st.fragment(run_every=REFRESH_SECONDS, key="compare")
    def panel() -> None:
        _board(results, colors, shown)

    panel()


def colors_of(groups: Sequence[Group], chosen: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Return, by the label of each run, its colour and whether it stands out.

    Up to eight runs each have a colour. Of more, runs of one configuration share one if there are up to eight
    configurations; otherwise the chosen configurations have a colour and all others are grey.
    """
    results = [result for group in groups for result in group.results]
    if len(results) <= FEW:
        return {result.label: (PALETTE[place], True) for place, result in enumerate(results)}
    named = [group.name for group in groups]
    if len(groups) > FEW:
        named = [name for name in chosen if name in named][: FEW - 1]
    places = {name: place for place, name in enumerate(named)}
    return {
        result.label: (
            PALETTE[places[group.name]] if group.name in places else GREY,
            group.name in chosen and group.name in places,
        )
        for group in groups
        for result in group.results
    }


def _board(results: Sequence[Result], colors: dict[str, tuple[str, bool]], shown: list[str]) -> None:
    curves: Curves = []
    for result in results:
        try:
            curves.append((result, state.curves(result.run)))
        except OSError as error:
            st.error(f"{state.as_code(result.run.metrics_path)} can't be read: {error.strerror}")
    more = _more_metrics([snapshot for _, snapshot in curves])
    options, _ = controls()
    # What stands out is drawn last, above the thin lines.
    curves.sort(key=lambda one: colors[one[0].label][1])
    charts = []
    for title, (split, value) in ({name: VALUES[name] for name in VALUES if name in shown} | more).items():
        lines: list[Line] = []
        for result, snapshot in curves:
            color, outstanding = colors[result.label]
            drawn = metric_lines(snapshot, split, value, state.clean(result.label), color, options, raw=False)
            lines += drawn if outstanding else [_thin(line) for line in drawn]
        look = look_of(value)
        charts.append(
            Chart(f"{split}-{value}", title, lines, look.unit, options.logarithmic and look.logarithmic)
        )
    board = encode(
        charts,
        axis=axis_kind(options),
        x_title=AXES[options.axis][1],
        window=window_of(options, timeline_of(curves[0][1]) if curves else None),
        name="comparison",
        height=300,
        points=min(1600, max(200, POINTS // max(1, len(curves)))),
    )
    component.draw(board, key="compare-board", on_window=lambda: remember_window("compare-board", options))


def _thin(line: Line) -> Line:
    return Line(line.name, line.x, line.y, line.color, "thin")


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
