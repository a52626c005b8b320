"""Make Plotly figures from data. Nothing here draws on a page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.charts.board import COLORS, PALETTE
from app.charts.lines import Line, drawn_points
from app.charts.store import Curve, Floats
from labkit.analysis.curves import moving_average
from labkit.run_directory.metrics import ResumePoint

__all__ = [
    "COLORS",
    "LEGEND_BELOW",
    "PALETTE",
    "X_AXES",
    "base_layout",
    "curve_figure",
    "shares_figure",
    "staleness_figure",
]

# Blue and orange come first: most charts have two lines, and colour-blind readers can tell these two apart.
# Each colour has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the backgrounds of both themes.
X_AXES = {"step": "Step", "epoch": "Epoch", "time": "Minutes"}

LEGEND = {"orientation": "h", "x": 1, "xanchor": "right", "y": 0.98, "yref": "container", "yanchor": "top"}
LEGEND_BELOW = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
}

MAX_MARKS = 400  # of values that aren't finite, of a line
MAX_MARKERS = 100  # of a line; more would overlap
MAX_RESUME_LABELS = 4  # more labels would overlap; only the lines are drawn then


def curve_figure(
    lines: Sequence[Line],
    *,
    title: str,
    x_axis: str = "step",
    log_y: bool = False,
    percent: bool = False,
    resume_points: Sequence[ResumePoint] = (),
    height: int = 300,
) -> go.Figure:
    """Draw ``lines`` over ``x_axis``.

    Values that aren't finite are marked in red at the edge of the chart, and in grey values that a
    logarithmic axis has no place for. The user's zoom is kept when new data arrive, because ``uirevision``
    depends only on the axes.

    Args:
        lines: those without points are left out.
        title: of the chart.
        x_axis: ``step``, ``epoch``, or ``time`` in minutes since the first point.
        log_y: whether the vertical axis is logarithmic.
        percent: whether values are shares, shown in percent.
        resume_points: each is drawn as a vertical line.
        height: in pixels.
    """
    figure = go.Figure()
    lines = [line for line in lines if len(line.curve)]
    origin = min((float(np.nanmin(line.curve.wall_time)) for line in lines), default=0.0)
    for line in lines:
        _add_line(figure, line, _x(line.curve, x_axis, origin), percent)
    _add_marks(figure, lines, x_axis, origin, log_y)
    if lines:
        _add_resume_points(figure, resume_points, lines[0].curve, x_axis, origin)
    figure.update_layout(
        base_layout(title, height),
        colorway=list(PALETTE),
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        hovermode="x unified",
        showlegend=sum(trace.showlegend is not False for trace in figure.data) > 1,
        legend=LEGEND,
        uirevision=f"{x_axis}-{log_y}",
        xaxis={"title": {"text": X_AXES[x_axis], "standoff": 6}, "automargin": True, "showgrid": False},
        yaxis={
            "type": "log" if log_y else "linear",
            "automargin": True,
            "tickformat": ".0%" if percent else None,
        },
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    )
    return figure


def base_layout(title: str, height: int) -> dict[str, Any]:
    font = {"size": 15, "weight": 600}
    return {
        "title": {"text": title, "font": font, "x": 0, "xanchor": "left", "y": 0.97, "yanchor": "top"},
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": height,
    }


def _x(curve: Curve, x_axis: str, origin: float) -> Floats:
    if x_axis == "time":
        return (curve.wall_time - origin) / 60
    return curve.epoch if x_axis == "epoch" else curve.step


def _add_line(figure: go.Figure, line: Line, x: Floats, percent: bool) -> None:
    smoothed = line.smoothing > 0 and not line.markers
    style = {"color": line.color, "width": 1.8}
    hover = "%{y:.2%}" if percent else "%{y:.5g}"
    if smoothed:
        xs, ys = drawn_points(x, line.curve.y)
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={"color": line.color, "width": 1},
            opacity=0.28,
            name=f"{line.name}, raw",
            legendgroup=line.name,
            showlegend=False,
            hovertemplate=hover,
        )
    xs, ys = drawn_points(x, moving_average(line.curve.y, line.smoothing) if smoothed else line.curve.y)
    figure.add_scatter(
        x=xs,
        y=ys,
        mode="lines+markers" if len(xs) <= (MAX_MARKERS if line.markers else 1) else "lines",
        line=style,
        marker={"size": 6, "color": line.color},
        name=line.name,
        legendgroup=line.name,
        hovertemplate=hover,
    )


def _add_marks(figure: go.Figure, lines: Sequence[Line], x_axis: str, origin: float, log_y: bool) -> None:
    """Mark at the edge of the chart what its axis has no place for."""
    red, grey = COLORS["not finite"], PALETTE[7]
    kinds: list[tuple[str, Callable[[Floats], NDArray[np.bool_]], str, float, str]] = [
        ("NaN", np.isnan, "x", 0.04, red),
        ("+Infinity", np.isposinf, "triangle-up", 0.97, red),
        ("−Infinity", np.isneginf, "triangle-down", 0.04, red),
    ]
    if log_y:
        kinds.append(("≤ 0", lambda y: np.isfinite(y) & (y <= 0), "triangle-down-open", 0.04, grey))
    for line in lines:
        for kind, test, symbol, height, color in kinds:
            indices = np.flatnonzero(test(line.curve.y))
            if not len(indices):
                continue
            some = indices[np.unique(np.linspace(0, len(indices) - 1, MAX_MARKS).astype(int))]
            figure.add_scatter(
                x=_x(line.curve, x_axis, origin)[some],
                y=np.full(len(some), height),
                yaxis="y2",
                mode="markers",
                marker={"symbol": symbol, "size": 9, "color": color},
                name=f"{line.name}: {kind} × {len(indices):,}",
                hovertemplate=f"{kind}",
            )


def _add_resume_points(
    figure: go.Figure, resume_points: Sequence[ResumePoint], curve: Curve, x_axis: str, origin: float
) -> None:
    for resume_point in resume_points:
        if x_axis == "time":
            x = (resume_point.wall_time - origin) / 60
        else:
            x = float(np.interp(resume_point.step, curve.step, _x(curve, x_axis, origin)))
        if not np.isfinite(x):
            continue
        label = f"resumed at {resume_point.step:,}" if len(resume_points) <= MAX_RESUME_LABELS else None
        figure.add_vline(
            x=x,
            line={"dash": "dot", "width": 1.2, "color": "#8a919c"},
            annotation={"text": label, "font": {"size": 11, "color": "#8a919c"}} if label else None,
            annotation_position="top" if label else None,
        )


def shares_figure(shares: Mapping[str, Sequence[float]], *, title: str) -> go.Figure:
    """Draw a bar for each worker with its shares of time.

    Args:
        shares: of compute, communication, and input or waiting, by the worker's name.
        title: of the chart.
    """
    names = list(shares)
    figure = go.Figure()
    kinds = (("compute", PALETTE[0]), ("communication", PALETTE[1]), ("input, waiting", PALETTE[7]))
    for number, (kind, color) in enumerate(kinds):
        figure.add_bar(
            x=[shares[name][number] for name in names],
            y=names,
            orientation="h",
            name=kind,
            marker={"color": color},
            hovertemplate="%{x:.1%}",
        )
    figure.update_layout(
        base_layout(title, max(300, 120 + 28 * len(names))),
        barmode="stack",
        bargap=0.4,
        margin={"l": 8, "r": 16, "t": 56, "b": 8},
        hovermode="y unified",
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -0.12,
            "yanchor": "top",
            "traceorder": "normal",
        },
        uirevision="shares",
        xaxis={"range": [0, 1], "tickformat": ".0%", "automargin": True, "showgrid": False},
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False, "ticklabelstandoff": 6},
    )
    return figure


def staleness_figure(counts: Mapping[str, Mapping[int, int]], *, title: str) -> go.Figure:
    """Draw, for each worker, the share of its updates at each staleness.

    Args:
        counts: updates at each staleness, by the worker's name.
        title: of the chart.
    """
    figure = go.Figure()
    for number, (name, of_worker) in enumerate(counts.items()):
        values = sorted(of_worker)
        total = sum(of_worker.values())
        figure.add_bar(
            x=values,
            y=[of_worker[value] / total for value in values],
            customdata=[of_worker[value] for value in values],
            name=name,
            marker={"color": PALETTE[number % len(PALETTE)]},
            hovertemplate="%{y:.1%} (%{customdata:,} updates)",
        )
    figure.update_layout(
        base_layout(title, 300),
        barmode="group",
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        hovermode="x unified",
        legend=LEGEND,
        uirevision="staleness",
        xaxis={
            "title": {"text": "Updates by other workers since the weights were read", "standoff": 6},
            "automargin": True,
            "showgrid": False,
            "tickformat": "d",
        },
        yaxis={"automargin": True, "tickformat": ".0%"},
    )
    return figure
