"""What each layer does: a heat map over layers and steps, charts over the steps and over the depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.charts.board import PALETTE, Chart, Line, Window
from app.charts.heat import Scale, diverging, encode_heat, logarithmic, sequential
from labkit.run_directory.columns import Floats
from labkit.run_directory.layers import DISTRIBUTIONS, LEVELS
from labkit.run_directory.layers import QUANTITIES as NAMES

MAX_COLUMNS = 240  # of the heat map; a column is then some five pixels wide
# Of update to weight: "somewhere around 1e-3", Stanford's CS231n, "Neural Networks Part 3".
USUAL_RATIO = 1e-3


class Quantity(NamedTuple):
    """The title of a quantity of layers, and whether its axis is logarithmic or in percent."""

    title: str
    logarithmic: bool = False
    percent: bool = False
    signed: bool = False


QUANTITIES = {
    "activation_mean": Quantity("Activation mean", signed=True),
    "activation_std": Quantity("Activation standard deviation", logarithmic=True),
    "zero_fraction": Quantity("Share of zeros", percent=True),
    "gradient_norm": Quantity("Gradient norm", logarithmic=True),
    "update_ratio": Quantity("Update-to-weight ratio", logarithmic=True),
}


MAX_BAND_STEPS = 800
MEDIAN = "median"
NAMES_OF_LEVELS = ("lowest", "1 %", "5 %", "25 %", MEDIAN, "75 %", "95 %", "99 %", "highest")
# The number of each of ``LEVELS``, its name, and the line that a band reaches to from here.
BANDS = [
    (number, name, NAMES_OF_LEVELS[8 - number] if number > 4 else "")
    for number, name in reversed(list(enumerate(NAMES_OF_LEVELS)))
]
DISTRIBUTION_LOOKS = {
    "weight_quantiles": ("Weights", PALETTE[0]),
    "gradient_quantiles": ("Gradients", PALETTE[1]),
    "activation_quantiles": ("Outputs", PALETTE[2]),
}


@dataclass(frozen=True)
class Layers:
    """What each layer did at each recorded step. Later polls don't change it.

    ``names``: of the layers in the order of the forward pass. ``step``: float64 [steps].
    ``values``: float64 [steps, quantities, layers] in the order of ``QUANTITIES``; ``present``: bool of the
    same shape, false where a layer has no such value. ``version`` grows with every change.
    """

    names: tuple[str, ...]
    step: Floats
    values: Floats
    present: NDArray[np.bool_]
    damaged_lines: int
    version: int
    quantiles: Sequence[tuple[tuple[str, ...], NDArray[np.float32]]] = ()

    def distribution(self, kind: str, layer: str) -> tuple[Floats, Floats]:
        """Return the steps that have quantiles of a layer, [n], and the values at ``LEVELS``, [n, levels]."""
        number, steps, found = DISTRIBUTIONS.index(kind), [], []
        for step, (names, values) in zip(self.step.tolist(), self.quantiles, strict=False):
            if layer in names and not np.isnan(row := values[number, names.index(layer)]).any():
                steps.append(step)
                found.append(row)
        return np.array(steps), np.array(found, np.float64).reshape(-1, len(LEVELS))

    def of(self, quantity: str) -> tuple[list[int], Floats, NDArray[np.bool_]]:
        """Return the indices of the layers that have the quantity, and [steps, these layers] twice."""
        number = NAMES.index(quantity)
        values, present = self.values[:, number], self.present[:, number]
        having = np.flatnonzero(present.any(axis=0))
        return having.tolist(), values[:, having], present[:, having]


def heat_map(layers: Layers, quantity: str) -> bytes:
    """Return the heat map of a quantity, layers from the first at the top, steps from the left.

    Red cells are not finite. If there are more than ``MAX_COLUMNS`` recorded steps, a column stands for
    several: it shows the last of them, or one that has a value that isn't finite.
    """
    look = QUANTITIES[quantity]
    having, values, present = layers.of(quantity)
    values, present = _binned(values, present)
    return encode_heat(
        f"{look.title} by layer and step",
        [layers.names[index] for index in having],
        layers.step[_ends(len(layers.step))],
        values.T,
        present.T,
        _scale(values[present & np.isfinite(values)], look),
        unit="percent" if look.percent else "",
    )


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


def _scale(values: Floats, look: Quantity) -> Scale:
    """Return the colours of finite values [n]. One outlier must not hide the rest: they cover 98 %."""
    if look.percent:
        return sequential(0.0, 1.0, percent=True)
    if look.logarithmic:
        values = np.log10(values[values > 0])
    low, high = np.percentile(values, [1, 99]).tolist() if len(values) else (0.0, 1.0)
    if look.signed:
        return diverging(max(abs(low), abs(high)))
    return logarithmic(low, high) if look.logarithmic else sequential(low, high)


def lines_chart(layers: Layers, quantity: str, chosen: Sequence[str]) -> Chart:
    """Return the chart with a quantity, a key of ``QUANTITIES``, of the ``chosen`` layers over the steps."""
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
    return _chart(quantity, "by step", lines)


def profile_chart(layers: Layers, quantity: str, row: int) -> Chart:
    """Return the chart of a quantity over the layers that have it, at recorded step ``row`` and at the first.

    ``row``: which of the recorded steps, of which there is one at least.
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
    return _chart(quantity, "by depth", [*lines, *_usual(quantity, (0.0, len(having) - 1.0))])


def distribution_charts(layers: Layers, layer: str, window: Window | None) -> list[Chart]:
    """Return the charts of a layer's weights, gradients and outputs: their distribution over the steps.

    ``window``: the steps that are shown; None: all.
    """
    charts = []
    for kind, (title, color) in DISTRIBUTION_LOOKS.items():
        steps, values = layers.distribution(kind, layer)
        part = _thinned(steps, window)
        lines = [
            Line(
                text,
                steps[part],
                values[part, number],
                color,
                "line" if text == MEDIAN else "edge",
                band=band,
            )
            for number, text, band in BANDS
        ]
        charts += [Chart(kind, f"{title} of {layer}", lines)] if len(steps) else []
    return charts


def _thinned(steps: Floats, window: Window | None) -> NDArray[np.intp]:
    """Return which rows to draw: the edges of a band need the same steps, so no line is thinned alone."""
    inside = np.arange(len(steps))
    if window is not None:
        first, last = np.searchsorted(steps, window[0], "left"), np.searchsorted(steps, window[1], "right")
        inside = inside[max(0, int(first) - 1) : int(last) + 1]
    return inside[np.unique(np.linspace(0, len(inside) - 1, min(len(inside), MAX_BAND_STEPS)).astype(int))]


def _chart(quantity: str, over: str, lines: Sequence[Line]) -> Chart:
    look = QUANTITIES[quantity]
    unit = "percent" if look.percent else ""
    return Chart(f"{quantity} {over}", f"{look.title} {over}", lines, unit, look.logarithmic)


def _usual(quantity: str, ends: tuple[float, float]) -> list[Line]:
    if quantity != "update_ratio":
        return []
    return [Line("1e-3, a usual ratio", np.array(ends), np.full(2, USUAL_RATIO), PALETTE[7], "dashed")]
