"""Write and read ``metrics.jsonl`` and ``evaluations.jsonl`` of a run directory.

Only the training process writes ``metrics.jsonl``. Other processes that evaluate the run append their rows to
``evaluations.jsonl``, each row under a lock. ``docs/run-directory.md`` describes the rows. Standard library
only.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.errors import InputError
from labkit.run_directory.files import AppendedLines, open_run_file

__all__ = [
    "VIEWS",
    "MetricsReader",
    "MetricsWriter",
    "ResumePoint",
    "Selection",
    "append_evaluation",
    "chosen_step",
    "clock_was_set",
    "evaluation_key",
    "evaluations_path",
    "evaluations_that_count",
    "is_superseded",
    "metrics_in_words",
    "parse_lines",
    "resume_point_of",
    "selection_metric",
    "with_evaluations",
]

# The metrics of an evaluation. Which of them a row has depends on the loss (docs/run-directory.md).
EVALUATION_METRICS = ("loss", "accuracy", "top5_accuracy", "binary_accuracy", "f1_micro", "f1_macro")

MAX_SECONDS_BETWEEN_ROWS = 6 * 3600.0  # beside the step itself; a validation takes minutes
VIEWS = "test_time_augmentation"  # in a row of ``labkit evaluate`` that was given other views than the run's
LOCK_TIMEOUT_SECONDS = 30.0  # writing a row takes milliseconds; a process that holds the lock longer hangs


@dataclass(frozen=True)
class ResumePoint:
    """Where a run was resumed. Rows of later steps that were written before it no longer count.

    ``step``: the step of the checkpoint. ``wall_time``: when, in seconds since the epoch; NaN if unknown.
    """

    step: int
    wall_time: float


def clock_was_set(seconds: Any, own: Any) -> Any:
    """Return whether the clock was set between two rows: the row then took its own time, not the difference.

    Several hours without a row count as such, too: the clock was set forward, or the machine slept.

    Args:
        seconds: the difference of the two rows' ``wall_time``; a float, or an array of them.
        own: what the later row itself tells of its time, such as its ``seconds_per_step``; likewise.
    """
    return (seconds < 0) | (seconds > own + MAX_SECONDS_BETWEEN_ROWS)


def resume_point_of(row: Mapping[str, Any]) -> ResumePoint | None:
    """Return the resume point of a row that has ``resumed_at_step``; None if it is damaged."""
    step, wall_time = row["resumed_at_step"], row.get("wall_time")
    if not isinstance(step, int):
        return None
    try:
        return ResumePoint(step, float(wall_time) if isinstance(wall_time, int | float) else math.nan)
    except OverflowError:  # a whole number of more than 300 digits
        return ResumePoint(step, math.nan)


class MetricsWriter:
    """Appends rows to ``metrics.jsonl``, one JSON object a line.

    If an earlier writer was killed in the middle of a line, that partial last line is removed first. No
    reader has seen it, because readers stop at the last newline.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
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

    def append(self, rows: list[Mapping[str, Any]]) -> None:
        """Write ``rows`` in order. NaN and infinity are written as the tokens ``NaN`` and ``Infinity``."""
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def mark_resume_point(self, step: int) -> None:
        """Record that the run resumes from ``step``: rows of later steps written so far no longer count."""
        self.append([{"resumed_at_step": step, "wall_time": time.time()}])

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class MetricsReader:
    """Follows ``metrics.jsonl``: each poll reads only the bytes that were appended since the last one.

    ``rows`` holds the rows that count, in the order written: after a resume point at step s, earlier rows
    with a step greater than s are dropped. Lines that aren't JSON objects are skipped and counted in
    ``damaged_lines``, and so are rows with a split whose step is no whole number.

    With ``keep_rows=False``, ``rows`` stays empty (300,000 rows take some 190 MB as dicts). The caller then
    stores what ``poll`` returns, drops its rows beyond the step of each new entry of ``resume_points``,
    and drops all its rows when ``generation`` has grown. With ``splits``, only rows of these splits are
    kept in ``rows``.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    resume_points: list[ResumePoint] = field(default_factory=list)
    damaged_lines: int = 0
    generation: int = 0  # grows whenever rows that an earlier poll returned are dropped
    keep_rows: bool = True
    splits: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._lines = AppendedLines(self.path)
        self._restarts = 0

    @property
    def caught_up(self) -> bool:
        """Whether the last poll reached the end of the file."""
        return self._lines.caught_up

    def poll(self, max_bytes: int | None = None) -> list[dict[str, Any]]:
        """Read what was appended since the last call, and return the new rows that count.

        A file that was replaced, rewritten or truncated is read from its beginning. A missing file has no
        rows; other errors are raised as OSError.

        Args:
            max_bytes: the most to read in one call, though a longer line is still read whole;
                ``caught_up`` then tells whether the end was reached. None reads to the end.
        """
        lines = self._lines.read(max_bytes)
        if self._lines.restarts != self._restarts:
            self._restart()
        fresh: list[dict[str, Any]] = []
        for row in parse_lines(lines.splitlines()):
            fresh = self._take(row, fresh)
        if self.keep_rows:
            self._keep(fresh)
        return fresh

    def _keep(self, fresh: list[dict[str, Any]]) -> None:
        for row in fresh:
            if "split" in row and type(row.get("step")) is not int:
                self.damaged_lines += 1
            elif self.splits is None or row.get("split") in self.splits:
                self.rows.append(row)

    def _take(self, row: Any, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return ``fresh``, the new rows of this poll, after one more parsed line."""
        if not isinstance(row, dict):
            self.damaged_lines += 1
            return fresh
        if "resumed_at_step" not in row:
            fresh.append(row)
            return fresh
        resume_point = resume_point_of(row)
        if resume_point is None:
            self.damaged_lines += 1
            return fresh
        self.resume_points.append(resume_point)
        before = len(self.rows)
        self.rows = [old for old in self.rows if _step_of(old) <= resume_point.step]
        self.generation += len(self.rows) != before
        return [old for old in fresh if _step_of(old) <= resume_point.step]

    def _restart(self) -> None:
        self._restarts = self._lines.restarts
        self.rows = []
        self.resume_points = []
        self.damaged_lines = 0
        self.generation += 1

    def split(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of one split: ``train``, ``validation`` or ``test``."""
        return [row for row in self.rows if row.get("split") == name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def metrics_in_words(row: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the metrics of an evaluation as text: ``loss 0.6931  accuracy 0.5000  …``.

    Args:
        row: of an evaluation.
        names: names to show instead of the keys.

    What is no number, in a damaged row, is left out.
    """
    known = [(names.get(key, key), row[key]) for key in EVALUATION_METRICS if _is_number(row.get(key))]
    return "  ".join(f"{name} {value:.4f}" for name, value in known)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def selection_metric(row: Mapping[str, Any]) -> float:
    """Return the metric that the best checkpoint is chosen by: accuracy, or micro-F1 with several labels.

    With several labels, accuracy counts images whose labels are all right. With many labels there may be no
    such image, whatever the checkpoint. Without a number, in a damaged row, it is minus infinity.
    """
    value = row.get("f1_micro", row.get("accuracy"))
    return value if _is_number(value) and value == value else -math.inf


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


def evaluations_path(metrics_path: Path) -> Path:
    """Return the path of ``evaluations.jsonl``, which lies beside ``metrics.jsonl``."""
    return metrics_path.with_name("evaluations.jsonl")


def evaluations_that_count(
    rows: Iterable[dict[str, Any]], resume_points: Iterable[ResumePoint], *, by_views: bool = False
) -> list[dict[str, Any]]:
    """Return the rows of ``evaluations.jsonl`` that count: the first one for each split and step.

    With ``by_views``, rows with another test-time augmentation than the run's count as well.

    As in ``metrics.jsonl``, a resume point at step s makes earlier rows of later steps invalid. Here a row
    is earlier if its checkpoint was read (``wall_time``) before the time of the resume point.
    """
    points = list(resume_points)
    kept: dict[tuple[str, float, str], dict[str, Any]] = {}
    for row in rows:
        wall_time = row.get("wall_time")
        read = wall_time if isinstance(wall_time, int | float) else math.inf
        if not is_superseded(_step_of(row), read, points):
            kept.setdefault((*_split_and_step(row), str(row.get(VIEWS)) if by_views else ""), row)
    return list(kept.values())


def is_superseded(step: float, wall_time: float, resume_points: Iterable[ResumePoint]) -> bool:
    """Return whether the run was resumed from before ``step`` later than ``wall_time``.

    A row of that step and time, in a file beside ``metrics.jsonl``, then no longer counts.
    """
    return any(step > point.step and wall_time < point.wall_time for point in resume_points)


def with_evaluations(reader: MetricsReader) -> list[dict[str, Any]]:
    """Return the rows of ``reader``, then those of ``evaluations.jsonl`` for other splits and steps."""
    beside = MetricsReader(evaluations_path(reader.path))
    beside.poll()
    known = {_split_and_step(row) for row in reader.rows}
    more = evaluations_that_count(beside.rows, reader.resume_points)
    return [*reader.rows, *(row for row in more if _split_and_step(row) not in known)]


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
    with open_run_file(path, "ab") as locked:
        _lock(locked, path)
        reader = MetricsReader(path)
        reader.poll()
        counting = evaluations_that_count(reader.rows, resume_points, by_views=True)
        if evaluation_key(row) in map(evaluation_key, counting):
            return False
        writer = MetricsWriter(path)
        writer.append([row])
        writer.close()
    return True


def _lock(file: Any, path: Path) -> None:
    import fcntl

    give_up = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise InputError(f"{path} is locked by another process; end it and try again") from None
            time.sleep(0.05)


def evaluation_key(row: Mapping[str, Any]) -> tuple[str, float, str]:
    """Return what an evaluation is of: split, step, and the test-time augmentation if it isn't the run's."""
    return *_split_and_step(row), str(row.get(VIEWS))


def _split_and_step(row: Mapping[str, Any]) -> tuple[str, float]:
    return str(row.get("split")), _step_of(row)


def _step_of(row: Mapping[str, Any]) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else 0


def parse_lines(lines: list[bytes], block: int = 4096) -> Iterator[Any]:
    """Yield the value of each line that isn't blank; None for a line that isn't JSON.

    A block of lines is parsed as one JSON array. That takes 0.57 times as long as one call a line (median of
    five measurements), and the rows share the strings of their keys, which halves their memory. If a block
    doesn't parse as an array, its lines are parsed one by one.
    """
    lines = [line for line in lines if line.strip()]
    for start in range(0, len(lines), block):
        part = lines[start : start + block]
        if all(line.startswith(b"{") and line.endswith(b"}") for line in part):
            values = _parse(b"[" + b",".join(part) + b"]")
            if values is not None and len(values) == len(part):
                yield from values
                continue
        yield from map(_parse, part)


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
