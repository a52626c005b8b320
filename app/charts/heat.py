"""A heat map, coloured here, as the bytes that the page's JavaScript draws (``assets/heat.js``)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL.ImageColor import getrgb

from app.charts.board import COLORS, ends, packed
from labkit.run_directory.columns import Floats

# Viridis (matplotlib, CC0) at ten places, and blue against red through grey.
SEQUENTIAL = (
    "#440154", "#482878", "#3e4989", "#31688e", "#26828e",
    "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
)  # fmt: skip
DIVERGING = ("#c0504d", "#d8dade", "#2f7fd1")
TICKS = 4  # distances between the numbers of a linear scale


@dataclass(frozen=True)
class Scale:
    """How values from ``low`` to ``high`` become colours. ``ticks``: places from 0 to 1 with their texts.

    ``log``: ``low`` and ``high`` are powers of ten.
    """

    low: float
    high: float
    stops: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def places(self, values: Floats) -> Floats:
        """Return the place of each value between ``low`` (0) and ``high`` (1); NaN where it has none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log10(values) if self.log else values  # zero, as of a dead layer, is below all others
            return np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)


def sequential(low: float, high: float, *, percent: bool = False) -> Scale:
    """Return the scale of values from ``low`` to ``high``; ``percent``: they are shares."""
    low, high = ends(low, high)
    return Scale(low, high, SEQUENTIAL, _linear(low, high, percent))


def diverging(most: float) -> Scale:
    """Return the scale of values from ``-most`` to ``most``, grey at zero."""
    most = ends(-most, most)[1]
    return Scale(-most, most, DIVERGING, _linear(-most, most, False))


def logarithmic(low: float, high: float) -> Scale:
    """Return the scale of values from 10**``low`` to 10**``high``."""
    low, high = ends(low, high)
    ticks = [
        (float((np.log10(mark) - low) / (high - low)), f"{mark:g}")
        for mark in powers(low, high, max(1, round((high - low) / 6)), 3.0)
    ]
    return Scale(low, high, SEQUENTIAL, tuple(ticks), log=True)


def powers(low: float, high: float, every: int, most: float) -> list[float]:
    """Return round values from 10**``low`` to 10**``high``: powers of ten whose exponent ``every`` divides.

    Over ``most`` powers of ten or fewer, also their double and fivefold.
    """
    known = [
        digit * 10.0**power
        for power in range(int(np.floor(low)), int(np.ceil(high)) + 1)
        if power % every == 0
        for digit in ((1,) if high - low > most else (1, 2, 5))
    ]
    return [mark for mark in known if low <= np.log10(mark) <= high]


def _linear(low: float, high: float, percent: bool) -> tuple[tuple[float, str], ...]:
    places = np.linspace(0.0, 1.0, TICKS + 1)
    values = low + places * (high - low)
    return tuple(
        (float(place), f"{100 * value:.0f} %" if percent else f"{value:.3g}")
        for place, value in zip(places, values, strict=True)
    )


def encode_heat(
    title: str,
    names: Sequence[str],
    columns: Floats,
    values: Floats,
    present: NDArray[np.bool_],
    scale: Scale,
    *,
    unit: str = "",
) -> bytes:
    """Return a heat map as bytes: the length of a JSON header, the header, the values and their colours.

    Args:
        title: of the map.
        names: of the rows, from the top.
        columns: the step of each column, ascending.
        values: float64 [rows, columns]. Those that aren't finite are red.
        present: bool of the same shape, false where there is no value.
        scale: of the colours.
        unit: ``percent`` for shares, or empty.
    """
    header = {
        "title": title,
        "names": list(names),
        "columns": columns.tolist(),
        "stops": list(scale.stops),
        "ticks": scale.ticks,
        "unit": unit,
    }
    numbers = np.ascontiguousarray(values, np.float64).tobytes()
    return packed(header, [numbers, _colors(values, present, scale).tobytes()])


def _colors(values: Floats, present: NDArray[np.bool_], scale: Scale) -> NDArray[np.uint8]:
    """Return red, green, blue and opacity of each cell, uint8 [rows, columns, 4]."""
    places = scale.places(values)
    at, stops = np.nan_to_num(places), np.array([getrgb(color) for color in scale.stops])
    cells = np.empty((*values.shape, 4), np.uint8)
    for channel, of_stops in enumerate(stops.T):
        cells[..., channel] = np.round(np.interp(at, np.linspace(0, 1, len(stops)), of_stops))
    cells[..., 3] = np.where(present & np.isfinite(places), 255, 0)
    cells[present & ~np.isfinite(values)] = (*getrgb(COLORS["not finite"]), 255)
    return cells
