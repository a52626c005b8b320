"""The horizontal axis of charts: by step, epoch, time spent training, or the clock."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.charts.store import Curve, Snapshot
from labkit.run_directory.metrics import clock_was_set
from labkit.run_directory.reader import Floats
from labkit.run_directory.rows import ResumePoint

__all__ = ["AXES", "Timeline", "steady", "timeline_of"]

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

    ``seconds`` counts from the first row, and leaves out the pauses before the run was resumed. ``clock``
    never goes back: if it ``was_set_back``, earlier rows are moved, and the last ones stand where they were
    made.
    """

    step: Floats
    epoch: Floats
    seconds: Floats
    clock: Floats
    was_set_back: bool = False

    def x(self, curve: Curve, axis: str) -> Floats:
        """Return the horizontal positions of a curve of the run, ascending; NaN where they are unknown."""
        if axis == "step":
            return curve.step
        if axis == "epoch":
            return curve.epoch
        if axis == "clock" and not self.was_set_back:
            return steady(curve.wall_time)
        if not len(self.step):
            return np.full(len(curve), np.nan)
        return np.interp(curve.step, self.step, self.clock if axis == "clock" else self.seconds)

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
        empty = np.empty(0)
        return Timeline(empty, empty, empty, empty)
    step, wall_time = table.columns["step"], _known(table.columns["wall_time"])
    own = np.nan_to_num(table.columns.get("seconds_per_step", np.zeros(len(step))), posinf=0.0, neginf=0.0)
    seconds = _seconds(step, wall_time, own, metrics.resume_points)
    set_back = bool((np.diff(wall_time) < 0).any())
    return Timeline(step, table.columns["epoch"], seconds, steady(wall_time, own), set_back)


def steady(wall_time: Floats, own: Floats | float = 0.0) -> Floats:
    """Return the times of rows, which never go back. Rows before the clock was set back are moved.

    Args:
        wall_time: float64 [rows]; NaN where it is unknown, which becomes the time of the row before.
        own: seconds that a row took itself: its distance from the row before, if the clock was set back.
    """
    wall_time = _known(wall_time)
    took = np.diff(wall_time, prepend=wall_time[:1])
    back = took < 0
    if not back.any():
        return wall_time
    missing = np.where(back, own - took, 0.0)  # by how much the rows before it are moved
    return wall_time - (missing.sum() - np.cumsum(missing))


def _known(wall_time: Floats) -> Floats:
    """Return the times with those that aren't known replaced by the one before. Leading ones stay NaN."""
    finite = np.isfinite(wall_time)
    if finite.all():
        return wall_time
    before = np.maximum.accumulate(np.where(finite, np.arange(len(wall_time)), 0))
    return np.where(np.isfinite(wall_time[before]), wall_time[before], np.nan)


def _seconds(step: Floats, wall_time: Floats, own: Floats, resume_points: Sequence[ResumePoint]) -> Floats:
    took = np.diff(wall_time, prepend=wall_time[:1])
    took = np.where(np.isfinite(took), np.where(clock_was_set(took, own), own, took), 0.0)
    for point in resume_points:
        first = int(np.searchsorted(step, point.step, "right"))
        if 0 < first < len(took):  # the first step after a pause counts as long as the second
            took[first] = took[first + 1] if first + 1 < len(took) else 0.0
    return np.cumsum(took)
