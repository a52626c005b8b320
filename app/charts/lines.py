"""The lines of a chart: select the last steps, and downsample the points to draw."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

from app.charts.store import Curve, Floats

__all__ = ["Line", "downsample", "drawn_points"]

MAX_POINTS = 2400  # of a line: two for each of 1,200 columns of pixels, which is wider than a chart


@dataclass(frozen=True)
class Line:
    """One curve to draw. With ``smoothing`` (weight of the past, 0 ≤ w < 1) the raw curve is faint."""

    name: str
    curve: Curve
    color: str
    smoothing: float = 0.0
    markers: bool = False


def downsample(y: Floats, points: int = MAX_POINTS) -> NDArray[np.intp]:
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


def drawn_points(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points to draw, with a gap (NaN) wherever a value between two of them isn't finite."""
    kept = downsample(y)
    gaps = np.searchsorted(kept, np.flatnonzero(~np.isfinite(y)))
    gaps = np.unique(gaps[(gaps > 0) & (gaps < len(kept))])
    return np.insert(x[kept], gaps, x[kept][gaps]), np.insert(y[kept], gaps, np.nan)
