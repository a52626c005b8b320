"""A run's metrics as arrays, ready to be drawn. Needs no TensorFlow."""

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
    """One figure of one split by step: ``step`` and ``value``, float64 [n]; NaN and ±Infinity are kept."""

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
    """The rows of a run that count, and where it was resumed."""

    rows: Sequence[Mapping[str, Any]]
    resume_points: Sequence[ResumePoint] = ()

    def curve(self, split: str, name: str) -> Curve:
        """Return the figure ``name`` of ``split``; empty where no row has it."""
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
    """Read all of a run's metrics, separate evaluations too; empty where there are none yet."""
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    return Curves(with_evaluations(reader), reader.resume_points)


def moving_average(value: Floats, weight: float) -> Floats:
    """Return the exponential moving average of ``value``, float64 [n].

    Bias-corrected as in Adam (Kingma & Ba 2015, §3): it starts at the first value, not at zero.

    Args:
        value: float64 [n]. NaN and ±Infinity stay at their places and don't enter the average.
        weight: share of the past, 0 ≤ weight < 1; 0 returns ``value``.

    Raises ValueError for another weight.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight is {weight}; allowed: 0 ≤ weight < 1")
    if weight == 0 or not len(value):
        return value
    finite = np.isfinite(value)
    series = pd.Series(np.where(finite, value, np.nan))
    averages = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().to_numpy()
    return np.where(finite, averages, value)
