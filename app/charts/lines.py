"""Which points of a line to draw."""

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

from labkit.run_directory.reader import Floats

__all__ = ["downsample"]


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
