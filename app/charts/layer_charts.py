"""What each layer does: a heat map over layers and steps, boards over the steps and over the depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.charts.board import COLORS, PALETTE, Chart, Line, Window, encode
from app.charts.columns import Floats
from app.charts.plotly_figures import base_layout
from labkit.run_directory.layers import QUANTITIES as NAMES

__all__ = ["QUANTITIES", "Layers", "heat_figure", "lines_board", "profile_board", "value_text"]

MAX_COLUMNS = 240  # of the heat map; a column is then some five pixels wide
MAX_TICKS = 60  # names beside the heat map
HEIGHT = 300  # of a board's drawing area, in pixels
# Of update to weight: "somewhere around 1e-3", Stanford's CS231n, "Neural Networks Part 3".
USUAL_RATIO = 1e-3

SEQUENTIAL = "Viridis"
DIVERGING = [[0, "#c0504d"], [0.5, "#d8dade"], [1, "#2f7fd1"]]


class Quantity(NamedTuple):
    """The title of a quantity of layers, and whether its axis is logarithmic or in percent."""

    title: str
    logarithmic: bool = False
    percent: bool = False
    signed: bool = False


QUANTITIES = {
    "activation_mean": Quantity("Activation mean", signed=True),
    "activation_std": Quantity("Activation standard deviation"),
    "zero_fraction": Quantity("Share of zeros", percent=True),
    "gradient_norm": Quantity("Gradient norm", logarithmic=True),
    "update_ratio": Quantity("Update-to-weight ratio", logarithmic=True),
}


@dataclass(frozen=True)
class Layers:
    """What each layer did at each recorded step. Later polls don't change it.

    ``names``: of the layers in the order of the forward pass. ``step``, ``wall_time``: float64 [steps].
    ``values``: float64 [steps, quantities, layers] in the order of ``QUANTITIES``; ``present``: bool of the
    same shape, false where a layer has no such value. ``version`` grows with every change.
    """

    names: tuple[str, ...]
    step: Floats
    wall_time: Floats
    values: Floats
    present: NDArray[np.bool_]
    damaged_lines: int
    version: int

    def of(self, quantity: str) -> tuple[list[int], Floats, NDArray[np.bool_]]:
        """Return the indices of the layers that have the quantity, and [steps, these layers] twice."""
        number = NAMES.index(quantity)
        values, present = self.values[:, number], self.present[:, number]
        having = np.flatnonzero(present.any(axis=0))
        return having.tolist(), values[:, having], present[:, having]


def value_text(value: float, present: bool = True) -> str:
    """Return a value as text with six digits; a dash where there is none."""
    return f"{value:.6g}" if present else "–"


def heat_figure(layers: Layers, quantity: str) -> go.Figure:
    """Draw a quantity, layers from the first at the top, steps from the left.

    Red cells are not finite. If there are more than ``MAX_COLUMNS`` recorded steps, a column stands for
    several: it shows the last of them, or one that has a value that isn't finite.
    """
    look = QUANTITIES[quantity]
    having, values, present = layers.of(quantity)
    values, present = _binned(values, present)
    steps = layers.step[_ends(len(layers.step))]
    names = [layers.names[index] for index in having]
    finite = present & np.isfinite(values)
    bad = present & ~np.isfinite(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.log10(np.where(values > 0, values, np.nan)) if look.logarithmic else values
    texts = [
        [f"{name}<br>step {step:,.0f}: {value_text(v, p)}" for step, v, p in zip(steps, vs, ps, strict=True)]
        for name, vs, ps in zip(names, values.T, present.T, strict=True)
    ]
    figure = go.Figure()
    figure.add_heatmap(
        x=steps,
        z=np.where(finite, z, np.nan).T,
        text=texts,
        hoverinfo="text",
        **_colors(z[finite & np.isfinite(z)], look),
    )
    if bad.any():
        red = COLORS["not finite"]
        figure.add_heatmap(
            x=steps,
            z=np.where(bad, 1.0, np.nan).T,
            colorscale=[[0, red], [1, red]],
            showscale=False,
            hoverinfo="skip",
        )
    figure.update_layout(base_layout(f"{look.title} by layer and step", _height(len(names))))
    every = -(-len(names) // MAX_TICKS) or 1
    figure.update_layout(
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        uirevision=quantity,
        xaxis={"title": {"text": "Step", "standoff": 6}, "automargin": True, "showgrid": False},
        yaxis={
            "tickvals": list(range(0, len(names), every)),
            "ticktext": names[::every],
            "tickfont": {"size": 9},
            "range": [len(names) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def _height(layers: int) -> int:
    return min(max(300, 110 + 11 * layers), 110 + 11 * MAX_TICKS)


def _ends(steps: int) -> NDArray[np.intp]:
    """Return the last index of each column of the heat map."""
    return np.unique(np.linspace(0, steps, min(steps, MAX_COLUMNS) + 1).astype(np.intp)[1:] - 1)


def _binned(values: Floats, present: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    ends = _ends(len(values))
    columns, starts = [], [0, *(ends[:-1] + 1)]
    for start, end in zip(starts, ends, strict=True):
        bad = present[start : end + 1] & ~np.isfinite(values[start : end + 1])
        one = np.where(bad.any(axis=0), start + bad.argmax(axis=0), end)
        columns.append(one)
    index = np.array(columns, np.intp)
    return np.take_along_axis(values, index, 0), np.take_along_axis(present, index, 0)


def _colors(z: Floats, look: Quantity) -> dict[str, Any]:
    bar: dict[str, Any] = {"thickness": 12, "outlinewidth": 0, "tickfont": {"size": 11}}
    low, high = np.percentile(z, [1, 99]) if len(z) else (0.0, 1.0)  # one outlier must not hide the rest
    if look.percent:
        return {"colorscale": SEQUENTIAL, "zmin": 0, "zmax": 1, "colorbar": {**bar, "tickformat": ".0%"}}
    if look.signed:
        most = max(abs(low), abs(high)) or 1.0
        return {"colorscale": DIVERGING, "zmin": -most, "zmax": most, "colorbar": bar}
    if look.logarithmic:
        digits = (1,) if high - low > 3 else (1, 2, 5)
        ticks = [
            digit * 10.0**power
            for power in range(int(np.floor(low)), int(np.ceil(high)) + 1)
            for digit in digits
        ]
        bar |= {"tickvals": np.log10(ticks).tolist(), "ticktext": [f"{tick:g}" for tick in ticks]}
    return {"colorscale": SEQUENTIAL, "zmin": low, "zmax": high if high > low else low + 1, "colorbar": bar}


def lines_board(
    layers: Layers, quantity: str, chosen: Sequence[str], *, window: Window | None = None, name: str = ""
) -> bytes:
    """Return the board with a quantity of the ``chosen`` layers over the steps.

    Args:
        layers: of the run.
        quantity: a key of ``QUANTITIES``.
        chosen: names of layers.
        window: the steps to show; None: all.
        name: of the run.
    """
    having, values, present = layers.of(quantity)
    names = [layers.names[index] for index in having]
    lines = []
    for number, layer in enumerate(chosen):
        if layer in names:
            column = names.index(layer)
            rows = present[:, column]
            color = PALETTE[number % len(PALETTE)]
            lines.append(Line(layer, layers.step[rows], values[rows, column], color, "marked"))
    if len(layers.step):
        lines += _usual(quantity, (layers.step[0], layers.step[-1]))
    chart = _chart(quantity, "by step", lines)
    return encode([chart], axis="step", x_title="Step", window=window, name=name, height=HEIGHT)


def profile_board(
    layers: Layers, quantity: str, row: int, *, window: Window | None = None, name: str = ""
) -> bytes:
    """Return the board with a quantity over the depth at recorded step number ``row``, and at the first one.

    Args:
        layers: of the run, with a row at least.
        quantity: a key of ``QUANTITIES``.
        row: which of the recorded steps.
        window: the layers to show, by their indices among those that have the quantity; None: all.
        name: of the run.
    """
    having, values, present = layers.of(quantity)
    # Kinds of layers differ: a line through all of them would only zigzag.
    lines = [
        Line(
            f"step {layers.step[which]:,.0f}",
            np.flatnonzero(present[which]).astype(np.float64),
            values[which, present[which]],
            color,
            "dots",
        )
        for which, color in {0: PALETTE[7], row % len(layers.step): PALETTE[0]}.items()
    ]
    chart = _chart(quantity, "by depth", [*lines, *_usual(quantity, (0.0, len(having) - 1.0))])
    names = [layers.names[index] for index in having]
    return encode([chart], axis="name", x_title="", window=window, name=name, height=HEIGHT, ticks=names)


def _chart(quantity: str, over: str, lines: Sequence[Line]) -> Chart:
    look = QUANTITIES[quantity]
    unit = "percent" if look.percent else ""
    return Chart(f"{quantity} {over}", f"{look.title} {over}", lines, unit, look.logarithmic)


def _usual(quantity: str, ends: tuple[float, float]) -> list[Line]:
    if quantity != "update_ratio":
        return []
    return [Line("1e-3, a usual ratio", np.array(ends), np.full(2, USUAL_RATIO), PALETTE[7], "dashed")]
