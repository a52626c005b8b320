"""Read a run's metrics as arrays, for plots. Doesn't import TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics, with_evaluations
from labkit.run_directory.rows import ResumePoint, is_number

Floats = NDArray[np.float64]

_MOST_CUTS = 100  # between parts of a curve that are averaged one by one


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
            if row.get("split") == split and is_number(row.get(name)) and is_number(row.get("step"))
        ]
        step, value = np.asarray(points, np.float64).reshape(-1, 2).T
        order = np.argsort(step, kind="stable")
        return Curve(step[order], value[order])


def read_curves(run: RunDirectory) -> Curves:
    """Read all metrics of a run, including separate evaluations. Empty if there are none yet."""
    reader = read_metrics(run)
    return Curves(with_evaluations(reader), reader.resume_points)


def moving_average(value: Floats, weight: float, step: Floats | None = None) -> Floats:
    """Return the exponential moving average of ``value``, float64 [n].

    It is bias-corrected as in Adam (Kingma & Ba 2015, §3), so it starts at the first value, not at zero.

    Args:
        value: float64 [n]. NaN and infinities stay where they are and don't affect the average.
        weight: of the past, 0 ≤ weight < 1; 0 returns ``value``.
        step: of each value, float64 [n], ascending; ``weight`` is that of the past one step ago. None: the
            finite values are one step apart.

    Raises ValueError for any other weight.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight is {weight}; allowed: 0 ≤ weight < 1")
    if weight == 0 or not len(value):
        return value
    finite = np.isfinite(value)
    known = value[finite]
    largest = np.abs(known).max(initial=0.0) or 1.0  # so that nothing overflows
    apart = np.ones(len(known)) if step is None else np.diff(step[finite], prepend=step[finite][:1])
    averages, ones = value.copy(), np.ones(len(known))
    sums = _decayed_sums(known / largest, weight, apart)
    averages[finite] = largest * (sums / _decayed_sums(ones, weight, apart))
    return averages


def _decayed_sums(value: Floats, weight: float, apart: Floats) -> Floats:
    """Return for each place the sum of the values up to it, each times ``weight`` for each step in between.

    ``apart`` [n]: steps from the value before to each.
    """
    sums, cuts = value.copy(), np.flatnonzero(apart[1:] != 1) + 1
    if len(cuts) > _MOST_CUTS:
        _scan(sums, weight**apart)
        return sums
    for first, end in pairwise([0, *cuts.tolist(), len(sums)]):
        if first:
            sums[first] += weight ** apart[first] * sums[first - 1]
        _scan(sums[first:end], np.array([weight]))
    return sums


def _scan(sums: Floats, decay: Floats) -> None:
    """Add to each value [n] the sum before it times its own ``decay`` [n]; [1] where they are all equal.

    Each pass doubles how far back the sums reach (Hillis & Steele 1986, "Data parallel algorithms").
    ``pandas`` has the function, but takes half a second to import when a dashboard starts.
    """
    reach = 1
    while reach < len(sums):
        behind, before = (decay, decay) if len(decay) == 1 else (decay[reach:], decay[:-reach])
        if not behind.any():
            break
        sums[reach:] += behind * sums[:-reach]
        behind *= before
        reach *= 2
