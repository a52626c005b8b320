"""Data to Plotly figures. Nothing here draws on a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

from app.curves import Curve, Floats
from labkit.analysis.curves import moving_average
from labkit.run_directory.metrics import ResumePoint

__all__ = [
    "COLORS",
    "PALETTE",
    "X_AXES",
    "Line",
    "confusion_figure",
    "curve_figure",
    "downsample",
    "last_steps",
    "shares_figure",
]

# Blue and orange first, so that the two lines of most charts don't rest on telling red from green. Each has a
# contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the backgrounds of both themes.
PALETTE = ("#2f7fd1", "#d9730d", "#1a9e77", "#b65fb0", "#a88600", "#2a9fc0", "#c0504d", "#7a7f87")
COLORS = {"train": PALETTE[0], "validation": PALETTE[1], "test": PALETTE[2], "not finite": "#d92d43"}
X_AXES = {"step": "Step", "epoch": "Epoch", "time": "Minutes"}

# Points drawn of one line: two for each of 1,200 columns of pixels, more than a chart is wide.
MAX_POINTS = 2400
MAX_MARKS = 400
MAX_MARKERS = 100  # of a line drawn with markers: beyond, they only hide each other
MAX_RESUME_LABELS = 4


@dataclass(frozen=True)
class Line:
    """One curve to draw. With ``smoothing`` (weight of the past, 0 ≤ w < 1) the raw curve shows faintly."""

    name: str
    curve: Curve
    color: str
    smoothing: float = 0.0
    markers: bool = False


def last_steps(curve: Curve, steps: int | None, end: float) -> Curve:
    """Return the part of ``curve`` in the last ``steps`` steps before ``end``; all of it for None."""
    if steps is None:
        return curve
    kept = curve.step > end - steps
    return Curve(curve.step[kept], curve.epoch[kept], curve.wall_time[kept], curve.y[kept])


def downsample(y: Floats, points: int = MAX_POINTS) -> NDArray[np.intp]:
    """Return the indices to draw of ``y``, ascending, about ``points`` of the finite ones at most.

    The lowest and the highest finite value of each of ``points // 2`` equal stretches are kept, and both
    ends: a spike of a single step always shows. (LTTB keeps one point of a stretch, and so loses a dip
    beside a spike.)
    """
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite) <= points:
        return finite
    kept = MinMaxDownsampler().downsample(np.ascontiguousarray(y[finite]), n_out=points - points % 2)
    return finite[np.unique(np.concatenate(([0], kept.astype(np.intp), [len(finite) - 1])))]


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
    """Draw ``lines`` over ``x_axis`` ("step", "epoch" or "time", minutes since the first point).

    Values that aren't finite are marked in red on the frame at their place. The view that a reader zoomed to
    survives new data: it is bound to the axes, not to the points.
    """
    figure = go.Figure()
    lines = [line for line in lines if len(line.curve)]
    origin = min((float(np.nanmin(line.curve.wall_time)) for line in lines), default=0.0)
    for line in lines:
        _add_line(figure, line, _x(line.curve, x_axis, origin), percent)
    _add_marks(figure, lines, x_axis, origin)
    if lines:
        _add_resume_points(figure, resume_points, lines[0].curve, x_axis, origin)
    figure.update_layout(
        title={
            "text": title,
            "font": {"size": 15, "weight": 600},
            "x": 0,
            "xanchor": "left",
            "y": 0.97,
            "yanchor": "top",
        },
        template="none",
        colorway=list(PALETTE),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        hovermode="x unified",
        showlegend=sum(trace.showlegend is not False for trace in figure.data) > 1,
        legend={
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 0.98,
            "yref": "container",
            "yanchor": "top",
        },
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


def _x(curve: Curve, x_axis: str, origin: float) -> Floats:
    if x_axis == "time":
        return (curve.wall_time - origin) / 60
    return curve.epoch if x_axis == "epoch" else curve.step


def _add_line(figure: go.Figure, line: Line, x: Floats, percent: bool) -> None:
    smoothed = line.smoothing > 0 and not line.markers
    style = {"color": line.color, "width": 1.8}
    hover = "%{y:.2%}" if percent else "%{y:.5g}"
    if smoothed:
        xs, ys = _drawn(x, line.curve.y)
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
    xs, ys = _drawn(x, moving_average(line.curve.y, line.smoothing) if smoothed else line.curve.y)
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


def _drawn(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points to draw, with a gap wherever a value that isn't finite lies between two of them."""
    kept = downsample(y)
    gaps = np.searchsorted(kept, np.flatnonzero(~np.isfinite(y)))
    gaps = np.unique(gaps[(gaps > 0) & (gaps < len(kept))])
    return np.insert(x[kept], gaps, x[kept][gaps]), np.insert(y[kept], gaps, np.nan)


def _add_marks(figure: go.Figure, lines: Sequence[Line], x_axis: str, origin: float) -> None:
    kinds = (
        ("NaN", np.isnan, "x", 0.04),
        ("+Infinity", np.isposinf, "triangle-up", 0.97),
        ("−Infinity", np.isneginf, "triangle-down", 0.04),
    )
    for line in lines:
        for kind, test, symbol, height in kinds:
            places = np.flatnonzero(test(line.curve.y))
            if not len(places):
                continue
            some = places[np.unique(np.linspace(0, len(places) - 1, MAX_MARKS).astype(int))]
            figure.add_scatter(
                x=_x(line.curve, x_axis, origin)[some],
                y=np.full(len(some), height),
                yaxis="y2",
                mode="markers",
                marker={"symbol": symbol, "size": 9, "color": COLORS["not finite"]},
                name=f"{line.name}: {kind} × {len(places):,}",
                hovertemplate=f"{kind}",
            )


def _add_resume_points(
    figure: go.Figure, resume_points: Sequence[ResumePoint], curve: Curve, x_axis: str, origin: float
) -> None:
    for resume_point in resume_points:
        if x_axis == "time":
            place = (resume_point.wall_time - origin) / 60
        else:
            place = float(np.interp(resume_point.step, curve.step, _x(curve, x_axis, origin)))
        if not np.isfinite(place):
            continue
        label = f"resumed at {resume_point.step:,}" if len(resume_points) <= MAX_RESUME_LABELS else None
        figure.add_vline(
            x=place,
            line={"dash": "dot", "width": 1.2, "color": "#8a919c"},
            annotation={"text": label, "font": {"size": 11, "color": "#8a919c"}} if label else None,
            annotation_position="top" if label else None,
        )


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str]) -> go.Figure:
    """Draw a confusion matrix ``int64 [true, predicted]``; colour is the share of the true class's examples.

    A square marker lies on every cell, ``customdata`` (true, predicted): heat maps can't be clicked.
    """
    count = len(classes)
    totals = confusion.sum(axis=1, keepdims=True)
    share = np.divide(confusion, totals, out=np.zeros(confusion.shape), where=totals > 0)
    cells = [(true, predicted) for true in range(count) for predicted in range(count)]
    texts = [f"{confusion[cell]:,}" if confusion[cell] else "" for cell in cells]
    figure = go.Figure(
        go.Heatmap(
            z=share,
            zmin=0,
            zmax=1,
            colorscale=[[0, "rgba(47,127,209,0.04)"], [0.15, "rgba(47,127,209,0.45)"], [1, "rgb(20,80,160)"]],
            showscale=False,
            hoverinfo="skip",
            xgap=2,
            ygap=2,
        )
    )
    figure.add_scatter(
        x=[predicted for _, predicted in cells],
        y=[true for true, _ in cells],
        mode="markers+text" if count <= 20 else "markers",
        text=texts,
        textfont={"size": 11, "color": ["#ffffff" if share[cell] > 0.12 else "#7f8894" for cell in cells]},
        marker={"symbol": "square", "size": 30, "opacity": 0},
        customdata=cells,
        hovertext=[
            f"{classes[true]} taken for {classes[predicted]}: {confusion[true, predicted]:,}"
            f" ({share[true, predicted]:.1%} of {classes[true]})"
            for true, predicted in cells
        ],
        hoverinfo="text",
        showlegend=False,
    )
    ticks = {"tickvals": list(range(count)), "ticktext": list(classes), "showgrid": False, "zeroline": False}
    figure.update_layout(
        height=max(320, 60 + 38 * min(count, 20)),
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        xaxis={**ticks, "title": {"text": "Predicted"}, "automargin": True, "range": [-0.5, count - 0.5]},
        yaxis={**ticks, "title": {"text": "True"}, "automargin": True, "range": [count - 0.5, -0.5]},
        dragmode=False,
    )
    return figure


def shares_figure(shares: Mapping[str, Sequence[float]], *, title: str) -> go.Figure:
    """Draw a bar for each worker, of its shares of computing, communicating, and input or waiting."""
    names = list(shares)
    figure = go.Figure()
    kinds = (("compute", PALETTE[0]), ("communication", PALETTE[1]), ("input, waiting", PALETTE[7]))
    for place, (kind, color) in enumerate(kinds):
        figure.add_bar(
            x=[shares[name][place] for name in names],
            y=names,
            orientation="h",
            name=kind,
            marker={"color": color},
            hovertemplate="%{x:.1%}",
        )
    figure.update_layout(
        title={"text": title, "font": {"size": 15, "weight": 600}, "x": 0, "xanchor": "left", "y": 0.97,
               "yanchor": "top"},
        template="none",
        barmode="stack",
        bargap=0.4,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=max(300, 120 + 28 * len(names)),
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
    )  # fmt: skip
    return figure
