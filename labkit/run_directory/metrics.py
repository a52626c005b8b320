"""Write ``metrics.jsonl`` and ``evaluations.jsonl`` of a run directory, and what their rows mean.

Only the training process writes ``metrics.jsonl``. Other processes that evaluate the run append their rows to
``evaluations.jsonl``, each row under a lock. ``docs/run-directory.md`` describes the rows.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from labkit.run_directory.files import Count, locked, open_run_descriptor
from labkit.run_directory.rows import (
    EVALUATION_METRICS,
    ResumePoint,
    RowReader,
    as_line,
    is_row,
    is_step,
    number,
    restored,
    result_name,
    valid,
)

MAX_SECONDS_BETWEEN_ROWS = 6 * 3600.0  # beside the step itself; a validation takes minutes
# In a row of evaluations.jsonl: how many resume points the run had when the checkpoint was read. Clocks of
# two machines differ, and one that was set back would make a later evaluation an earlier one.
RESUMES = "resume_points"
VIEWS = "test_time_augmentation"  # in a row of ``labkit evaluate`` that was given other views than the run's
Row = Mapping[str, Any]
LOCK_TIMEOUT_SECONDS = 30.0  # writing a row takes milliseconds; a process that holds the lock longer hangs


def clock_was_set(seconds: Any, own: Any) -> Any:
    """Return whether the clock was set between two rows: the row then took its own time, not the difference.

    Several hours without a row count as such, too: the clock was set forward, or the machine slept.

    Args:
        seconds: the difference of the two rows' ``wall_time``; a float, or an array of them.
        own: what the later row itself tells of its time, such as its ``seconds_per_step``; likewise.
    """
    return (seconds < 0) | (seconds > own + MAX_SECONDS_BETWEEN_ROWS)


class MetricsWriter:
    """Appends rows to ``metrics.jsonl``, one JSON object a line.

    If an earlier writer was killed in the middle of a line, that partial last line is removed first. No
    reader has seen it, because readers stop at the last newline.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = open_run_descriptor(os.fspath(path), os.O_RDWR | os.O_CREAT)
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            position = end = start
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``rows`` in order. Where a disk refuses them, no part of a line is left."""
        data = "".join(map(as_line, rows)).encode()
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._cut_torn_line()
            raise

    def mark_resume_point(self, step: int) -> None:
        """Record that the run resumes from ``step``: rows of later steps written so far no longer count."""
        self.append([{"resumed_at_step": step, "wall_time": time.time()}])

    def close(self) -> None:
        os.close(self._descriptor)


_NO_METRICS = ("epoch", "wall_time", "seconds")  # numbers of an evaluation that are none


def metrics_in_words(row: Mapping[str, Any]) -> str:
    """Return the metrics of an evaluation as text: ``loss 0.6931  accuracy 0.5000  …``.

    What is no number, in a damaged row, is left out.
    """
    known = [key for key in EVALUATION_METRICS if _is_number(row.get(key))]
    own = [
        key
        for key, value in row.items()
        if key not in (*known, *_NO_METRICS) and not key.startswith("tta_") and isinstance(value, float)
    ]
    return "  ".join(f"{key} {row[key]:.4f}" for key in (*known, *own))


def result_in_words(row: Mapping[str, Any], digits: int = 4) -> str:
    """Return the metric that counts as text: ``accuracy 0.9120``, or ``mean absolute error 3.213``."""
    name = result_name(row)
    value = row.get(name)
    value = math.nan if not _is_number(value) else value
    return f"{name.replace('_', ' ')} {value:.{digits}{'f' if name == 'accuracy' else 'g'}}"


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def selection_name(row: Mapping[str, Any]) -> str:
    """Return the name of the metric that ``selection_metric`` takes."""
    name = row.get("best_by")
    return name if isinstance(name, str) else "f1_micro" if "f1_micro" in row else result_name(row)


def selection_metric(row: Mapping[str, Any]) -> float:
    """Return what the best checkpoint is chosen by: the larger, the better; minus infinity without a number.

    That is the metric that the row names as ``best_by``, or the opposite of it for a loss or an error.
    Without one it is accuracy, the mean absolute error of numbers, or micro-F1 with several labels: there,
    accuracy counts images whose labels are all right, and with many labels there may be none, whatever the
    checkpoint.
    """
    named = selection_name(row)
    value: Any = row.get(named)
    if not _is_number(value) or value != value:
        return -math.inf
    return float(-value if is_minimized(named) else value)


def is_minimized(name: str) -> bool:
    """Return whether the lowest value of a metric is best: of a loss, and of what ends in loss or error."""
    return name.endswith(("loss", "error"))


@dataclass
class Selection:
    """Which checkpoint a run is judged by: the newest one whose validation isn't clearly worse than the best.

    Clearly worse is by more than a standard error of the best metric, ``sqrt(p (1 - p) / n)`` on n images.
    On few images the best of many validations is chance, and would be that of a hardly trained network. The
    rule of one standard error is that of Breiman et al., Classification and Regression Trees, 1984.

    ``step``: of the checkpoint; None before the first validation. ``best``: the highest metric so far.
    """

    step: int | None = None
    best: float | None = None

    def add(self, row: Mapping[str, Any]) -> bool:
        """Take the row of a validation, in the order of the steps. Returns whether it is chosen."""
        metric, images = selection_metric(row), row.get("examples")
        self.best = metric if self.best is None else max(self.best, metric)
        share = min(1.0, max(0.0, self.best))
        error = math.sqrt(share * (1 - share) / images) if isinstance(images, int) and images > 0 else 0.0
        is_chosen = metric >= self.best - error
        if is_chosen:
            self.step = int(row["step"])
        return is_chosen


def chosen_step(validations: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the step of ``Selection`` for the rows of all validations; None without any."""
    selection = Selection()
    for row in validations:
        selection.add(row)
    return selection.step


def own_test_step(rows: Iterable[Row]) -> int | None:
    """Return the step of the checkpoint whose test result is the run's own; None: the newest one's.

    That is the one that the training reported. A training that reported none would have chosen the
    checkpoint of ``Selection``, or the newest if it validated nothing. Whoever chooses another one
    by its test result makes that result too good, so it never counts as the run's.

    Args:
        rows: of ``metrics.jsonl`` that count, in the order written.
    """
    rows = [row for row in rows if number(row.get("step")) is not None]
    tests, validations = (
        [row for row in rows if row.get("split") == split] for split in ("test", "validation")
    )
    return int(_step_of(_newest(tests))) if tests else chosen_step(validations)


def own_test(reported: Iterable[Row], chosen: int | None, beside: Iterable[Row]) -> Row | None:
    """Return the run's own test result; None if it has none.

    Args:
        reported: rows of ``test`` in ``metrics.jsonl`` that count, in the order written.
        chosen: the step that validations choose (``chosen_step``).
        beside: rows of ``test`` in ``evaluations.jsonl`` that count. One of them is taken only if the
            training reported none: that of the chosen step, or the newest where nothing was validated.
    """
    if reported := list(reported):
        return _newest(reported)
    tests = [row for row in beside if chosen is None or row.get("step") == chosen]
    return _newest(tests) if tests else None


def _newest(rows: list[Row]) -> Row:
    """Return the row of the highest step; of several, the last one."""
    return max(reversed(rows), key=_step_of)


@dataclass(frozen=True)
class MetricsSummary:
    """What a table of runs tells of ``metrics.jsonl``. Whoever writes the run keeps it in ``status.json``.

    ``file_bytes``: of the file whose rows it is made of. ``last_step`` and ``training_loss``: of the last
    training step; the loss may be NaN or infinite. ``duration``: seconds of training. ``spark``: up to
    ``SPARK_POINTS`` finite losses, evenly spread. ``validation``: the row of the highest step.
    ``best_accuracy``: of all validations; ``validated``: the steps of the last ``MOST_VALIDATED`` of them.
    ``chosen_step``: see ``Selection``. ``tests``: the rows of the test set that the training reported. What
    isn't known is None.
    """

    file_bytes: Count = 0
    last_step: Count | None = None
    training_loss: float | None = None
    duration: float | None = None
    spark: tuple[float, ...] = ()
    validation: Row | None = None
    best_accuracy: float | None = None
    validated: tuple[Count, ...] = ()
    chosen_step: Count | None = None
    tests: tuple[Row, ...] = ()
    resume_points: tuple[ResumePoint, ...] = ()
    damaged_lines: Count = 0

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` takes, ready for JSON."""
        validation = self.validation and valid(self.validation)
        return valid(vars(self) | {"validation": validation, "tests": list(map(valid, self.tests))})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MetricsSummary | None":
        """Return the summary; None if there is none, or none that ``to_json`` could have made."""
        values = restored(dict(content))
        if not cls.__dataclass_fields__.keys() <= values.keys():
            return None
        try:
            tests = [restored(dict(row)) for row in values["tests"]]
            validation = values["validation"] and restored(dict(values["validation"]))
            summary = msgspec.convert(values | {"tests": tests, "validation": validation}, cls)
        except (TypeError, ValueError):
            return None
        rows = (*summary.tests, *([summary.validation] if summary.validation else []))
        return summary if all(map(is_row, rows)) else None


SPARK_POINTS = 40  # values of the small line chart
MOST_VALIDATED = 1_000


def evaluations_path(metrics_path: Path) -> Path:
    """Return the path of ``evaluations.jsonl``, which lies beside ``metrics.jsonl``."""
    return metrics_path.with_name("evaluations.jsonl")


def evaluations_that_count(
    rows: Iterable[dict[str, Any]],
    resume_points: Iterable[ResumePoint],
    known: Iterable[Row] = (),
    *,
    by_views: bool = False,
) -> list[dict[str, Any]]:
    """Return the rows of ``evaluations.jsonl`` that count: the first one for each split and step.

    As in ``metrics.jsonl``, a resume point at step s makes earlier rows of later steps invalid. Here a row
    is earlier if its checkpoint was read before (``is_superseded``).

    Args:
        rows: in the order written.
        resume_points: of the run's metrics.
        known: evaluations that the training has made itself, which leave out those of their split and step.
        by_views: whether rows with another test-time augmentation than the run's count as well.
    """
    points = list(resume_points)
    key: Callable[[Row], tuple[Any, ...]] = evaluation_key if by_views else _split_and_step
    others = set(map(key, known))
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in filter(is_row, rows):
        wall_time = row.get("wall_time")
        read = wall_time if isinstance(wall_time, int | float) else math.inf
        if key(row) not in others and not is_superseded(_step_of(row), read, points, row.get(RESUMES)):
            kept.setdefault(key(row), {name: value for name, value in row.items() if name != RESUMES})
    return list(kept.values())


def damaged_rows(rows: Iterable[Row]) -> int:
    """Return how many rows of ``evaluations.jsonl`` never count, because they are damaged."""
    return sum(not is_row(row) for row in rows)


def is_superseded(
    step: float, wall_time: float, resume_points: Iterable[ResumePoint], known: Any = None
) -> bool:
    """Return whether the run was resumed from before ``step`` later than ``wall_time``.

    A row of that step and time, in a file beside ``metrics.jsonl``, then no longer counts. ``known``: the
    row's ``RESUMES``, which counts in place of the time.
    """
    points, counted = list(resume_points), is_step(known)
    later = points[known:] if counted else points
    return any(step > point.step and (counted or wall_time < point.wall_time) for point in later)


def append_evaluation(
    metrics_path: Path, row: Mapping[str, Any], resume_points: Iterable[ResumePoint]
) -> bool:
    """Append ``row`` to ``evaluations.jsonl``, unless one of its split, step and views that counts is there.

    Returns whether the row was appended.

    Args:
        metrics_path: of the run.
        row: its ``wall_time`` is when the checkpoint was read.
        resume_points: of the run's metrics. A row that they made invalid may be written again.

    Raises InputError if another process keeps the file locked.
    """
    path = evaluations_path(metrics_path)
    with locked(path, LOCK_TIMEOUT_SECONDS):
        reader = RowReader(path)
        reader.poll()
        counting = evaluations_that_count(reader.rows, resume_points, by_views=True)
        if evaluation_key(row) in map(evaluation_key, counting):
            return False
        writer = MetricsWriter(path)
        writer.append([row])
        writer.close()
    return True


def evaluation_key(row: Row) -> tuple[str, float, str]:
    """Return what an evaluation is of: split, step, and the test-time augmentation if it isn't the run's."""
    return *_split_and_step(row), str(row.get(VIEWS))


def _split_and_step(row: Row) -> tuple[str, float]:
    return str(row.get("split")), _step_of(row)


def _step_of(row: Row) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else 0
