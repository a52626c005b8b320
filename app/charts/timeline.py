"""The horizontal axis of charts: by step, epoch, time spent training, or the clock."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.charts.columns import Floats
from app.charts.store import Curve, Snapshot
from labkit.run_directory.metrics import ResumePoint

__all__ = ["AXES", "Timeline", "timeline_of"]

# The name of each axis in the URL, its label in the controls, and its title below the charts.
AXES = {
    "step": ("Step", "Step"),
    "epoch": ("Epoch", "Epoch"),
    "training": ("Training time", "Time spent training, without pauses"),
    "clock": ("Wall clock", "Wall clock"),
}


@dataclass(frozen=True)
class Timeline:
    """When the training steps of a run were made, float64 [steps] each.

    ``seconds`` counts from the first row, and leaves out the pauses before the run was resumed.
    """

    step: Floats
    epoch: Floats
    seconds: Floats
    clock: Floats

    def x(self, curve: Curve, axis: str) -> Floats:
        """Return the horizontal positions of a curve of the run, ascending; NaN where they are unknown."""
        if axis == "step":
            return curve.step
        if axis == "epoch":
            return curve.epoch
        if axis == "clock":  # a clock may be set back
            return np.fmax.accumulate(curve.wall_time) if len(curve) else curve.wall_time
        if not len(self.step):
            return np.full(len(curve), np.nan)
        return np.interp(curve.step, self.step, self.seconds)

    def convert(self, window: tuple[float, float], axis: str, to: str) -> tuple[float, float] | None:
        """Return the part of axis ``to`` that shows the steps of ``window``; None if there are none."""
        columns = {"step": self.step, "epoch": self.epoch, "training": self.seconds, "clock": self.clock}
        if not len(self.step) or axis not in columns or to not in columns:
            return None
        low, high = np.interp(window, columns[axis], columns[to])
        return (float(low), float(high)) if high > low else None


def timeline_of(metrics: Snapshot) -> Timeline:
    """Return the timeline of a run. It is made once for each change of the metrics."""
    return metrics.memo.get("timeline", lambda: _timeline(metrics))


def _timeline(metrics: Snapshot) -> Timeline:
    table = metrics.tables.get("train")
    if table is None:
        return Timeline(*(np.empty(0) for _ in range(4)))
    step, clock = table.columns["step"], np.fmax.accumulate(table.columns["wall_time"])
    return Timeline(step, table.columns["epoch"], _seconds(step, clock, metrics.resume_points), clock)


def _seconds(step: Floats, clock: Floats, resume_points: Sequence[ResumePoint]) -> Floats:
    took = np.diff(clock, prepend=clock[:1])
    took = np.where(np.isfinite(took), took, 0.0)
    for point in resume_points:
        first = int(np.searchsorted(step, point.step, "right"))
        if 0 < first < len(took):  # the first step after a pause counts as long as the second
            took[first] = took[first + 1] if first + 1 < len(took) else 0.0
    return np.cumsum(took)
