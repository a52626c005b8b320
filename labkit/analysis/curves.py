"""Read a run's metrics as arrays, for plots. Doesn't import TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader, ResumePoint, with_evaluations

__all__ = ["Curve", "Curves", "moving_average", "read_curves"]

Floats = NDArray[np.float64]


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
    reader = MetricsReader(run.metrics_path)
    reader.poll()
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
    series = pd.Series(np.where(finite, value, np.nan))
    averages = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().to_numpy()
    return np.where(finite, averages, value)
