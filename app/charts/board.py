"""A board of charts: what to draw, as the bytes that the page's JavaScript reads (``assets/board.js``).

All charts of a board share the horizontal axis, its zoom and the cursor. Only the points that a window of
that axis can show are sent: of each line the lowest and the highest of every column of pixels. Every zoom is
drawn anew from all points of the run.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

from labkit.run_directory.columns import Floats

Window = tuple[float, float]

# Each colour has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the backgrounds of both themes. Blue and
# orange come first: most charts have two lines, and colour-blind readers can tell these two apart.
PALETTE = ("#2f7fd1", "#d9730d", "#1a9e77", "#b65fb0", "#a88600", "#2a9fc0", "#c0504d", "#7a7f87")
# How each of these colours is dashed, in pixels: who can't tell the hues tells the lines apart by it. Colours
# that look alike to colour-blind readers, such as orange and olive, are dashed very differently.
DASHES = dict(
    zip(
        PALETTE,
        ((), (8, 4), (2, 3), (10, 3, 2, 3), (7, 3, 2, 3, 2, 3), (16, 4), (3, 7), (14, 3, 5, 3)),
        strict=True,
    )
)
COLORS = {"train": PALETTE[0], "validation": PALETTE[1], "test": PALETTE[2], "not finite": "#d92d43"}

CLOSE = 1e-12  # ends that differ by a smaller part of their values count as equal
MOST = 1e300  # the distance between two ends is a number, too
Size = Literal["small", "medium", "large"]
SIZES: dict[Size, float] = {"small": 0.6, "medium": 1.0, "large": 2.0}  # of a chart, by height
DASHED = ("line", "marked", "row")  # styles of lines that are told apart by their dashes, too
MAX_MARKS = 400  # of values that can't be drawn, of a line and kind

# The kinds of values that an axis has no place for: their name, and whether they lie at its upper end.
NOT_FINITE = (("NaN", np.isnan, False), ("+Infinity", np.isposinf, True), ("−Infinity", np.isneginf, False))


@dataclass(frozen=True)
class Line:
    """One line: ``x`` ascending and ``y``, float64 [n] each, with NaN and infinities as recorded.

    ``style``: ``line``; ``faint``, thin and pale, such as the raw values behind smoothed ones; ``thin``, one
    of many, which the pointer names but the legend doesn't; ``row``, one of many whose legend is a row of a
    table; ``marked``, with its points; ``dots``, the points alone; ``bars``, from zero, for x at equal
    distances; ``dashed``, a level to compare with, which counts no points; ``edge``, hardly visible, of a
    band.
    ``pick``: a click on one of its points is reported. ``band``: the name of the line that the area from this
    one is filled to; both have the same x. ``other``: of another run, thinner, and last in the legend.
    ``dashed_as``: the colour whose dashes it has; empty: its own.
    """

    name: str
    x: Floats
    y: Floats
    color: str
    style: str = "line"
    pick: bool = False
    band: str = ""
    other: bool = False
    dashed_as: str = ""


@dataclass(frozen=True)
class Chart:
    """One chart. ``unit``: ``percent`` for shares, ``seconds``, ``bytes``, or empty.

    ``named``: a single line has its name in the legend, too.
    """

    key: str
    title: str
    lines: Sequence[Line]
    unit: str = ""
    logarithmic: bool = False
    named: bool = False


@dataclass(frozen=True)
class Seam:
    """A vertical line at ``x`` with a label, such as where a run was resumed.

    ``strong``: stands out. ``row``: of the label, from the top; many of row 0 are left out.
    """

    x: float
    label: str
    strong: bool = False
    row: int = 0


@dataclass
class _Arrays:
    """The arrays of a payload, one behind the other."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, values: NDArray[Any]) -> tuple[int, int]:
        """Append ``values`` as float64 and return their place: the first one's index and their number."""
        data = np.ascontiguousarray(values, np.float64)
        place = (self.size, len(data))
        self.parts.append(data.tobytes())
        self.size += len(data)
        return place


def ends(low: float, high: float) -> Window:
    """Return the ends of an axis for values from ``low`` to ``high``: finite and never equal.

    No axis can be drawn from ends that are equal, or so near that steps between them are lost in rounding.
    ``ends`` in ``assets/board.js`` does the same with what a zoom makes of them.
    """
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        return 0.0, 1.0
    low, high = max(low, -MOST), min(high, MOST)
    if high - low > CLOSE * max(abs(low), abs(high)):
        return low, high
    room = abs(high) * 0.1 or 1.0
    return low - room, high + room


def extent(charts: Iterable[Chart]) -> Window | None:
    """Return the least and the greatest x of all points; None if there is no point."""
    ends = [(float(line.x[0]), float(line.x[-1])) for chart in charts for line in chart.lines if len(line.x)]
    ends = [(low, high) for low, high in ends if np.isfinite(low) and np.isfinite(high)]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def encode(
    charts: Sequence[Chart],
    *,
    axis: str,
    x_title: str = "",
    window: Window | None = None,
    seams: Sequence[Seam] = (),
    name: str = "",
    height: int = 220,
    size: Size = "medium",
    ticks: Sequence[str] = (),
    points: int = 1600,
    pick: str = "",
    ident: str = "",
) -> bytes:
    """Return the board as bytes: the length of a JSON header, the header, and the float64 arrays it names.

    Args:
        charts: in the order to draw them.
        axis: what ``x`` is: ``step``, ``epoch``, ``seconds`` (of training), ``clock`` (seconds since 1970),
            ``count`` (a whole number of something), ``value``, ``percent`` (of a metric), or ``name`` (an
            index of ``ticks``). A value may go up and down: such a line is drawn as points alone.
        x_title: of the horizontal axis.
        window: the part of the axis to show; None, or ends that are none: all.
        seams: vertical lines of all charts.
        name: of the run or runs; pictures are saved under it.
        height: of each chart's drawing area, in pixels, at medium size.
        size: a key of ``SIZES``.
        ticks: the names along the horizontal axis, if ``axis`` is ``name``.
        points: of each line that are sent, about.
        pick: what a click on a point shows, for the reader; empty: clicks on points are not reported.
        ident: tells the board from others of its page; empty for one that isn't fetched (app/feed.py).
    """
    place = _in_order if axis in ("value", "percent") else _placed
    charts = [replace(chart, lines=list(map(place, chart.lines))) for chart in charts]
    if window is not None and not (np.isfinite(window).all() and window[0] <= window[1]):
        window = None
    arrays = _Arrays()
    header = {
        "axis": axis,
        "xTitle": x_title,
        "extent": (-0.5, len(ticks) - 0.5) if ticks else extent(charts),
        "window": window,
        "name": name,
        "height": round(height * SIZES[size]),
        "size": size,
        "ticks": list(ticks),
        "pick": pick,
        "ident": ident,
        "seams": [asdict(seam) for seam in seams if np.isfinite(seam.x)],
        "charts": [_chart(chart, window, points, arrays) for chart in charts],
    }
    return packed(header, arrays.parts)


def packed(header: dict[str, Any], parts: Iterable[bytes]) -> bytes:
    """Return the length of a JSON header, the header, and the arrays behind it."""
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 8)  # arrays of float64 begin at a multiple of eight bytes
    return b"".join([struct.pack("<II", len(text), 0), text, *parts])


def _chart(chart: Chart, window: Window | None, points: int, arrays: _Arrays) -> dict[str, Any]:
    lines = [_line(line, chart.logarithmic, window, points, arrays) for line in chart.lines if len(line.x)]
    return vars(chart) | {"lines": lines}


def _placed(line: Line) -> Line:
    """Return the line without the points whose x is unknown."""
    known = np.isfinite(line.x)
    return line if known.all() else replace(line, x=line.x[known], y=line.y[known])


def _in_order(line: Line) -> Line:
    """Return the line with its x in order. Points that aren't in this or the opposite order have no line."""
    line = _placed(line)
    ways = np.diff(line.x)
    up, down = (ways > 0).any(), (ways < 0).any()
    order = np.arange(len(line.x))[::-1] if down and not up else np.argsort(line.x, kind="stable")
    x = line.x[order]
    _, first, which = np.unique(x, return_index=True, return_inverse=True)
    x = x + (np.arange(len(x)) - first[which]) * np.spacing(x)  # a place of its own for each, or one is lost
    return replace(line, x=x, y=line.y[order], style="dots" if up and down else line.style)


def _line(
    line: Line, logarithmic: bool, window: Window | None, points: int, arrays: _Arrays
) -> dict[str, Any]:
    x, y, inside = _within(line, window)
    kept, gaps = _kept(y, points, logarithmic)
    return vars(line) | {
        "dash": DASHES.get(line.dashed_as or line.color, ()) if line.style in DASHED else (),
        "of": inside,
        "x": arrays.add(np.insert(x[kept], gaps, x[kept][gaps] if len(gaps) else ())),
        "y": arrays.add(np.insert(y[kept], gaps, np.nan)),
        "marks": [] if line.style in ("faint", "thin", "edge") else _marks(x, y, logarithmic, arrays),
    }


def _within(line: Line, window: Window | None) -> tuple[Floats, Floats, int]:
    """Return the points in the window and one more on either side, and how many are in the window."""
    if window is None:
        return line.x, line.y, len(line.x)
    first, last = np.searchsorted(line.x, window[0], "left"), np.searchsorted(line.x, window[1], "right")
    part = slice(max(0, int(first) - 1), int(last) + 1)
    return line.x[part], line.y[part], int(last - first)


def _kept(y: Floats, points: int, logarithmic: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices to draw, and before which of them there is a gap: a value that can't be drawn."""
    drawn = np.where(y > 0, y, np.nan) if logarithmic else y
    kept = downsample(drawn, points)
    gaps = np.searchsorted(kept, np.flatnonzero(~np.isfinite(drawn)))
    return kept, np.unique(gaps[(gaps > 0) & (gaps < len(kept))])


def _marks(x: Floats, y: Floats, logarithmic: bool, arrays: _Arrays) -> list[dict[str, Any]]:
    kinds = [(kind, indices, up) for kind, test, up in NOT_FINITE if len(indices := np.flatnonzero(test(y)))]
    if logarithmic and len(indices := np.flatnonzero(np.isfinite(y) & (y <= 0))):
        kinds.append(("≤ 0", indices, False))
    return [
        {"kind": kind, "count": len(indices), "up": up, "x": arrays.add(x[_some(indices)])}
        for kind, indices, up in kinds
    ]


def _some(indices: NDArray[np.intp]) -> NDArray[np.intp]:
    return indices[np.unique(np.linspace(0, len(indices) - 1, MAX_MARKS).astype(int))]


def downsample(y: Floats, points: int) -> NDArray[np.intp]:
    """Return the indices of the values to draw, ascending; about ``points`` finite values at most.

    ``y`` is divided into ``points // 2`` equal intervals, and the lowest and the highest finite value of each
    are kept, as well as both ends. A spike of a single step is therefore always drawn. (LTTB keeps one point
    of each interval and would lose a dip beside a spike.)

    Args:
        y: float64 [n].
        points: how many to keep.
    """
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite) <= points:
        return finite
    kept = MinMaxDownsampler().downsample(np.ascontiguousarray(y[finite]), n_out=points - points % 2)
    return finite[np.unique(np.concatenate(([0], kept.astype(np.intp), [len(finite) - 1])))]
