"""Smoothing of a curve by its steps: a metric that is recorded rarely isn't blurred over much of the run.

TensorBoard's moving average counts points. That of W&B, called time-weighted, decays with the distance on the
axis, in thousandths of all of it (https://docs.wandb.ai/guides/app/features/panels/line-plot/smoothing): the
past looks different when the run has grown. Here the unit is the usual distance of two training rows.
"""

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.curves import moving_average
from labkit.run_directory.columns import Floats

KINDS = {  # of smoothing, and what the amount of each is
    "Exponential average": "Weight of the past",
    "Gaussian": "Standard deviation, in steps",
    "Mean of a window": "Window, in steps",
}
EXPONENTIAL, GAUSSIAN, WINDOW = KINDS


def spacing(step: Floats) -> float:
    """Return the usual distance between two of the first steps, which ascend; 1 if there is none."""
    return (float(np.median(np.diff(step[:10_000]))) if len(step) > 1 else 0.0) or 1.0


def smoothed(y: Floats, step: Floats, kind: str, amount: float, apart: float) -> Floats:
    """Return a curve smoothed, float64 [n]. NaN and infinities stay where they are and affect nothing else.

    Args:
        y: float64 [n].
        step: float64 [n], ascending.
        kind: one of ``KINDS``.
        amount: the weight of the past after ``apart`` steps, below 1; the standard deviation in steps; or the
            width of the window in steps.
        apart: steps between two training rows.
    """
    if not np.isfinite(step).all():
        step = np.arange(float(len(step)))
    if kind == EXPONENTIAL:
        return moving_average(y, amount, step / apart)
    finite = np.isfinite(y)
    at, mean = step[finite], y.copy()
    largest = np.abs(y[finite]).max(initial=0.0) or 1.0  # so that nothing overflows
    # Three means of windows are nearly a Gaussian (Wells 1986, "Efficient synthesis of Gaussian filters by
    # cascaded uniform filters"). The variance of each is a third of the square of half its width.
    half, times = (amount, 3) if kind == GAUSSIAN else (amount / 2, 1)
    first, end = np.searchsorted(at, at - half, "left"), np.searchsorted(at, at + half, "right")
    known = y[finite] / largest
    for _ in range(times):
        known = _sums(known, first, end) / (end - first)
    mean[finite] = largest * known
    return mean


def _sums(value: Floats, first: NDArray[np.intp], end: NDArray[np.intp]) -> Floats:
    """Return the sum of ``value[first:end]`` for each pair, [n].

    Added up from sums of 1, 2, 4 … values. Differences of running totals would be quicker, but all that comes
    after one huge value would be lost in its rounding.
    """
    sums, first, length, size = np.zeros(len(first)), first.copy(), end - first, 1
    while size <= length.max(initial=0):
        odd = (length & size) > 0
        sums[odd] += value[first[odd]]
        first[odd] += size
        value = value[:-size] + value[size:]
        size *= 2
    return sums
