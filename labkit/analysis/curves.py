"""Read a run's metrics as arrays, for plots. Doesn't import TensorFlow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics, with_evaluations
from labkit.run_directory.rows import ResumePoint

Floats = NDArray[np.float64]

_DECADES = 100  # between the units of a block of the moving average


@dataclass(frozen=True)
class Curve:
    """One metric of one split by step: ``step`` and ``value``, float64 [n]. NaN and infinities are kept."""

    step: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.step)

    @property
    def not_finite(self) -> Floats:
        """The steps at which the value is NaN or infinite."""
        return self.step[~np.isfinite(self.value)]


@dataclass(frozen=True)
class Curves:
    """The rows of a run that count, and the points where it was resumed."""

    rows: Sequence[Mapping[str, Any]]
    resume_points: Sequence[ResumePoint] = ()

    def curve(self, split: str, name: str) -> Curve:
        """Return the metric ``name`` of ``split``, in order of step; empty if no row has it."""
        points = [
            (row["step"], row[name])
            for row in self.rows
            if row.get("split") == split and _is_number(row.get(name)) and _is_number(row.get("step"))
        ]
        step, value = np.asarray(points, np.float64).reshape(-1, 2).T
        order = np.argsort(step, kind="stable")
        return Curve(step[order], value[order])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_curves(run: RunDirectory) -> Curves:
    """Read all metrics of a run, including separate evaluations. Empty if there are none yet."""
    reader = read_metrics(run)
    return Curves(with_evaluations(reader), reader.resume_points)


def moving_average(value: Floats, weight: float) -> Floats:
    """Return the exponential moving average of ``value``, float64 [n].

    It is bias-corrected as in Adam (Kingma & Ba 2015, §3), so it starts at the first value, not at zero.

    Args:
        value: float64 [n]. NaN and infinities stay where they are and don't affect the average.
        weight: of the past, 0 ≤ weight < 1; 0 returns ``value``.

    Raises ValueError for any other weight.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight is {weight}; allowed: 0 ≤ weight < 1")
    if weight == 0 or not len(value):
        return value
    finite = np.isfinite(value)
    known = value[finite]
    largest = np.abs(known).max(initial=0.0) or 1.0  # so that nothing overflows
    averages = value.copy()
    averages[finite] = largest * (_decayed_sums(known / largest, weight) * (1 - weight))
    corrected = math.ceil(_DECADES / -math.log10(weight))  # of later ones the correction is 1
    first = np.flatnonzero(finite)[:corrected]
    averages[first] /= 1 - weight ** np.arange(1, len(first) + 1)
    return averages


def _decayed_sums(value: Floats, weight: float) -> Floats:
    """Return for each place the sum of the values up to it, each times ``weight`` for each place in between.

    Whole blocks are summed at once, in units that shrink with the place: a million values in 0.1 s.
    ``pandas`` has the function, but takes half a second to import when a dashboard starts.
    """
    length = max(1, min(len(value), int(_DECADES / -math.log10(weight))))
    blocks = np.zeros((-(-len(value) // length), length))
    blocks.reshape(-1)[: len(value)] = value
    decay = weight ** np.arange(length)
    sums = np.cumsum(blocks / decay, axis=1) * decay
    before, carried = 0.0, np.empty(len(sums))
    for block, last in enumerate(sums[:, -1].tolist()):
        carried[block] = before
        before = before * weight**length + last
    sums += carried[:, None] * (decay * weight)
    return sums.reshape(-1)[: len(value)]
