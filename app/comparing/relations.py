"""How results depend on settings and on each other: a scatter plot, and parallel coordinates."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from app import state
from app.charts.board import PALETTE
from app.comparing.plots import Axis, Dot, axis_of, scatter
from app.markup import draw_for_widths, plain, unfolding
from labkit.analysis.results import MEASURES, Group, Result, differing, known_measures, title_of
from labkit.plurals import listed

MOST_AXES = 10  # of the parallel coordinates
# The last ones, of which the very last gives the lines their colour.
LAST = (
    "seconds", "training_loss", "best_validation", "validation_mean_absolute_error", "test_accuracy",
    "test_mean_absolute_error",
)  # fmt: skip


def show_relations(groups: Sequence[Group], colors: dict[str, tuple[str, bool]]) -> None:
    """Draw the scatter plot and, once it is opened, the parallel coordinates of all runs."""
    results = [result for group in groups for result in group.results]
    found = axes(groups)
    known = known_measures(groups)
    measures = [title_of(name, groups) for name in known]
    if not measures:
        st.info("These runs have no results yet.")
        return
    settings = [name for name in found if name not in measures]
    # A result against itself says nothing: at first a setting, or the time it took.
    first_x = next((name for name in (*settings, "Duration", "Steps") if name in found), measures[-1])
    names = list(found)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        x = st.selectbox(
            "Horizontal", names, index=names.index(first_x), key="across", bind="query-params", width=240
        )
        y = st.selectbox("Vertical", measures, key="up", bind="query-params", width=240)
    labels = [state.clean(result.label) for result in results]
    draw_scatter(labels, [colors[result.label][0] for result in results], found[x], found[y], key="scatter")
    names = [*settings, *(title_of(name, groups) for name in LAST if name in known)]
    parallel = partial(draw_parallel, names, found)
    unfolding("Parallel coordinates", parallel, key="parallel", icon="stacked_line_chart")


def draw_scatter(
    labels: Sequence[str], colors: Sequence[str], x: Axis, y: Axis, *, key: str, what: str = "runs"
) -> None:
    """Draw a dot for each run, or for ``what`` else has a label and a colour, that has both values."""
    every = map(Dot, labels, x.values, y.values, colors)
    dots = [dot for dot in every if dot.x is not None and dot.y is not None]
    if not dots:
        st.info(f"None of the {what} has both {plain(x.title)} and {plain(y.title)}.")
        return
    draw_for_widths(partial(scatter, dots, x, y, what=what), key=key)
    if len(dots) < len(labels):
        st.caption(f"{len(dots)} of {len(labels)} {what} have both values.")


def axes(groups: Sequence[Group]) -> dict[str, Axis]:
    """Return the axes by their titles: results, then the settings that differ, each with a value a run."""
    results: list[Result] = [result for group in groups for result in group.results]
    found: dict[str, Axis] = {}
    for name in known_measures(groups):
        scale = 100 if MEASURES[name].unit == "percent" else 1
        values = [None if (value := result.values.get(name)) is None else scale * value for result in results]
        unit = {"percent": "%", "seconds": "s"}.get(MEASURES[name].unit, "")
        found[title_of(name, groups)] = axis_of(title_of(name, groups), values, unit)
    columns: dict[str, list[Any]] = differing(results)
    if len({result.seed for result in results}) > 1:
        columns["seed"] = [result.seed for result in results]
    for setting, values in columns.items():
        found[setting if setting not in found else f"{setting} (setting)"] = axis_of(
            setting, values, few=True
        )
    return found


def draw_parallel(names: Sequence[str], found: dict[str, Axis], what: str = "runs") -> None:
    """Draw a line for each run, or for ``what`` else, through its values on some of the axes."""
    import plotly.graph_objects as go  # with its script of 5 MB, for this chart alone

    names = [name for name in names if len({str(value) for value in found[name].values}) > 1]
    if len(names) < 2:
        st.info("Fewer than two settings and results differ.")
        return
    left, names = names[:-MOST_AXES], names[-MOST_AXES:]
    last = found[names[-1]]
    complete = [
        place
        for place in range(len(last.values))
        if all(found[name].values[place] is not None for name in names)
    ]
    if not complete:
        st.info(f"None of the {what} has all these values.")
        return
    dimensions = []
    for name in names:
        axis = found[name]
        places = [axis.place(axis.values[place]) for place in complete]
        marks = axis.ticks()
        dimensions.append(
            {
                "label": state.clean(axis.plain_title).replace("<", "‹"),  # Plotly reads some HTML
                "values": places,
                "tickvals": [at for at, _ in marks],
                "ticktext": [text.replace("<", "‹") for _, text in marks],
            }
        )
    color = [last.place(last.values[place]) for place in complete]
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={"color": color, "colorscale": [[0, PALETTE[0]], [1, PALETTE[1]]], "showscale": False},
            labelfont={"size": 13},
            tickfont={"size": 11},
        )
    )
    figure.update_layout(height=420, margin={"l": 70, "r": 70, "t": 60, "b": 30})
    st.plotly_chart(
        figure, key="parallel-chart", config={"displayModeBar": False}, alt="Parallel coordinates"
    )
    st.caption(
        f"A line for each of {len(complete)} {what} that have all values, blue for the lowest and orange for "
        f"the highest {plain(last.plain_title)}. Drag along an axis to keep a part of it; drag a title "
        f"to move it.{f' Left out: {plain(listed(left))}.' if left else ''}"
    )
