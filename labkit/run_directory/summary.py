"""One line of a table of runs, for ``labkit runs`` and the dashboard's first page.

What was read is kept with the time of change and size of its file, so that the next look at a thousand runs
reads only what has changed.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory.directory import ACTIVE_STATES, RunDirectory, Status
from labkit.run_directory.metrics import (
    MetricsSummary,
    Row,
    damaged_rows,
    evaluations_that_count,
    own_test,
)
from labkit.run_directory.notes import Notes, read_lineage, read_notes
from labkit.run_directory.rows import RowReader, number, valid

BLOCK_BYTES = 1 << 22  # read between two looks at the clock
GRACE_NANOSECONDS = 2 * 10**9  # of file systems: the status is written after the rows


@dataclass(frozen=True)
class Described:
    """What a configuration says.

    Attributes:
        dataset, model: their names; None where the configuration is damaged.
        settings: the values that differ from the defaults; None where the configuration is damaged.
        values: all values by their names; empty where the configuration is damaged.
        recorded_by: with what another program recorded the run; "" if labkit trained it.
    """

    dataset: str | None = None
    model: str | None = None
    settings: Mapping[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    recorded_by: str = ""


@dataclass(frozen=True, kw_only=True)
class RunSummary(Described):
    """What is known of a run. None stands for what isn't known.

    Attributes:
        state: ``starting``, ``running``, ``stalled``, ``lost``, ``finished``, ``interrupted``, ``failed``, or
            ``unknown`` without a readable status.
        message: the reason of the state, or what is wrong with the run's files.
        training_loss: of the last step; may be NaN or infinite.
        duration: seconds of training, without the pauses between two sessions.
        last_active: when the status was last written, in seconds since 1970.
        results: the run's own row of ``test`` (``own_test``) and the latest of ``validation``, where there
            is one.
        damage: what is wrong with the run's files, a sentence each; part of ``message``.
        other_tests: rows of other checkpoints that ``labkit evaluate`` evaluated on ``test``.
        spark: training losses, evenly spread over the run.
        forked_from: name and step of the run whose past it shares, such as ``first, step 80``.
        complete: False if there was no time to read the metrics, which then are unknown.
    """

    name: str
    path: str
    state: str
    message: str
    step: int | None
    total_steps: int | None
    best_validation_accuracy: float | None
    training_loss: float | None
    examples_per_second: float | None
    duration: float | None
    last_active: float
    notes: Notes
    results: Mapping[str, Row]
    spark: tuple[float, ...]
    forked_from: str | None
    complete: bool
    other_tests: tuple[Row, ...]
    damage: tuple[str, ...]

    @property
    def age(self) -> float:
        """Seconds since the run was last active."""
        return max(0.0, time.time() - self.last_active)

    @property
    def progress(self) -> float | None:
        """The fraction of the steps that is done, 0 to 1."""
        if self.step is None or not self.total_steps:
            return None
        return min(max(self.step / self.total_steps, 0.0), 1.0)

    @property
    def accuracy_split(self) -> str | None:
        """Whose accuracy counts: that of the test set, before its evaluation the latest on validation."""
        return next(iter(self.results), None)

    @property
    def accuracy(self) -> float | None:
        """Of ``accuracy_split``, 0 to 1."""
        return None if self.accuracy_split is None else _accuracy(self.results[self.accuracy_split])

    @property
    def mean_absolute_error(self) -> float | None:
        """Of ``accuracy_split``, in the unit of the labels, where these are numbers."""
        row = self.results.get(self.accuracy_split or "", {})
        return number(row.get("mean_absolute_error"))

    @property
    def test_accuracy(self) -> float | None:
        return _accuracy(self.results.get("test", {}))

    def to_json(self) -> dict[str, Any]:
        """Return the summary for programs, ready for JSON: NaN and infinity are None."""
        values = valid({name: getattr(self, name) for name in _IN_JSON})
        return {name: values[name] for name in _IN_JSON} | {
            "settings": None if self.settings is None else dict(self.settings),
            "tags": list(self.notes.tags),
            "note": self.notes.note,
            "archived": self.notes.archived,
        }


_IN_JSON = (
    "name", "path", "state", "message", "step", "total_steps", "progress", "accuracy", "accuracy_split",
    "mean_absolute_error", "best_validation_accuracy", "test_accuracy", "training_loss",
    "examples_per_second", "duration", "dataset", "model", "settings", "spark", "forked_from", "age",
)  # fmt: skip

Describe = Callable[[Mapping[str, Any]], Described]
Signature = tuple[int, int, int] | None


class Summaries:
    """Summarises runs, again and again. Several threads may share one.

    Args:
        describe: reads a configuration, and raises InputError if it is damaged:
            ``labkit.config.config.describe``.
    """

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._followers: dict[Path, _Follower] = {}
        self._lock = threading.Lock()

    def of(self, runs: Iterable[RunDirectory], seconds: float = math.inf) -> list[RunSummary]:
        """Return the summary of each run, in their order. What is damaged or missing counts as unknown.

        Args:
            runs: the runs. Others are forgotten.
            seconds: the time after which no more metrics are read; those of the remaining runs are read at
                the next call, and until then unknown.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            before = self._followers
            self._followers = {
                run.path: before.get(run.path) or _Follower(run, self._describe) for run in runs
            }
            return [self._followers[run.path].look(deadline) for run in runs]


class _Follower:
    """Follows the files of one run, and reads those that have changed."""

    def __init__(self, run: RunDirectory, describe: Describe) -> None:
        self._run, self._describe = run, describe
        self._signatures: dict[str, Signature] = {}
        self._status: Status | None = None
        self._described = Described()
        self._damage = ""  # of the configuration
        self._notes = Notes()
        self._forked_from: str | None = None
        self._summary: RunSummary | None = None
        self._from_status: Status | None = None  # when the metrics were last looked at
        self._metrics: MetricsSummary | None = None  # None: there was no time to read it
        self._from_rows = False  # the writer kept no summary, or was killed
        self._reader: Any = None  # of such a run, while it is read or written
        self._unread: dict[str, str] = {}  # what can't be opened, and why
        self._evaluations = RowReader(run.evaluations_path)

    def look(self, deadline: float) -> RunSummary:
        """Read what has changed, metrics until ``deadline``, and return the summary."""
        changed = self._read_small_files()
        changed |= self._read_metrics(deadline)
        # The state of an active run may change without a file: its process may be gone.
        active = self._status is not None and self._status.state in ACTIVE_STATES
        if changed or active or self._summary is None:
            self._summary = self._summarised()
        return self._summary

    def _has_changed(self, path: Path) -> bool:
        """Return whether the file is another one than at the last call."""
        try:
            found = os.stat(path)
            signature: Signature = (found.st_mtime_ns, found.st_size, found.st_ino)
        except (OSError, ValueError):
            signature = None
        before = self._signatures.get(path.name, ())
        self._signatures[path.name] = signature
        return before != signature

    def _read_small_files(self) -> bool:
        run = self._run
        status, notes, config = map(self._has_changed, (run.status_path, run.notes_path, run.config_path))
        if status:
            self._status = run.read_status()
        if notes:
            self._notes = read_notes(run)
        if config:
            lineage = read_lineage(run)
            self._forked_from = f"{Path(lineage.parent).name}, step {lineage.step}" if lineage else None
            try:
                self._described, self._damage = self._describe(run.read_config()) or Described(), ""
            except InputError as error:
                self._described, self._damage = Described(), str(error)
        return status or notes or config

    def _read_metrics(self, deadline: float) -> bool:
        """Look at the metrics until ``deadline``. Returns whether anything has changed."""
        run = self._run
        changed = self._has_changed(run.metrics_path)
        if self._has_changed(run.evaluations_path):
            changed = True
            self._unread.pop(run.evaluations_path.name, None)
            try:
                self._evaluations.poll()
            except OSError as error:
                self._unread[run.evaluations_path.name] = str(error.strerror)
        seen = self._metrics if self._from_status is self._status else None
        # An active run's summary may be behind its rows; once its process is gone, the rows count.
        if not changed and seen is not None and (self._from_rows or self._is_current(seen)):
            return False
        written = MetricsSummary.from_json(self._status.metrics) if self._status else None
        if written is not None and self._is_current(written):
            self._reader = None
            self._keep(written, from_rows=False)
            return True
        if time.monotonic() >= deadline and self._reader is None:
            return changed
        from labkit.run_directory.reader import MetricsReader, summary_of  # with NumPy, so only where needed

        self._reader = self._reader or MetricsReader(run.metrics_path)
        self._unread.pop(run.metrics_path.name, None)
        try:
            while True:
                self._reader.poll(BLOCK_BYTES)
                if self._reader.caught_up:
                    self._keep(summary_of(self._reader), from_rows=True)
                    if not self._is_written():
                        self._reader = None  # it has all rows; of a thousand runs they would fill the memory
                    return True
                if time.monotonic() >= deadline:
                    return changed
        except OSError as error:
            self._reader = None
            self._keep(MetricsSummary(), from_rows=True)
            self._unread[run.metrics_path.name] = str(error.strerror)
            return True

    def _keep(self, metrics: MetricsSummary, *, from_rows: bool) -> None:
        self._metrics, self._from_status, self._from_rows = metrics, self._status, from_rows

    def _is_written(self) -> bool:
        """Return whether a process still writes the run."""
        return self._status is not None and self._status.liveness() in ACTIVE_STATES

    def _is_current(self, summary: MetricsSummary) -> bool:
        """Return whether a summary tells of the file that is there, or of a run that still writes it."""
        found, status = self._signatures.get("metrics.jsonl"), self._signatures.get("status.json")
        if self._is_written():
            return summary.file_bytes <= (found[1] if found else 0)
        if found is None or status is None:
            return found is None and summary.file_bytes == 0
        changed, size, _ = found
        return size == summary.file_bytes and changed <= status[0] + GRACE_NANOSECONDS

    def _summarised(self) -> RunSummary:
        run, status, complete = self._run, self._status, self._metrics is not None
        metrics = self._metrics or MetricsSummary()
        state = status.liveness() if status else "unknown"
        beside = self._evaluations_beside(metrics) if complete else []
        tests = [row for row in beside if row.get("split") == "test"]
        test = own_test(metrics.tests, metrics.chosen_step, tests)
        validations = [metrics.validation] if metrics.validation else []
        validations += [row for row in beside if row.get("split") == "validation"]
        validation = max(validations, key=lambda row: number(row.get("step")) or 0, default=None)
        bests = [metrics.best_accuracy, *map(_accuracy, validations)]
        steps = [step for step in (status.step if status else None, metrics.last_step) if step is not None]
        total = (status.total_steps if status else None) or number(self._described.values.get("train_steps"))
        damage = tuple(self._all_damage())
        active = self._signatures.get("status.json") or self._signatures.get("config.json")
        return RunSummary(
            **vars(self._described),
            name=run.name,
            path=str(run.path),
            state=state,
            message="; ".join(filter(None, (_reason(status, state), *damage))),
            damage=damage,
            step=max(steps, default=None),
            total_steps=None if total is None else int(total),
            best_validation_accuracy=max((best for best in bests if best is not None), default=None),
            training_loss=metrics.training_loss,
            examples_per_second=number(status.examples_per_second) if status else None,
            duration=metrics.duration,
            last_active=active[0] / 1e9 if active else 0.0,
            notes=self._notes,
            other_tests=tuple(row for row in (*metrics.tests, *tests) if row is not test),
            results={str(row["split"]): row for row in (test, validation) if row is not None},
            spark=metrics.spark,
            forked_from=self._forked_from,
            complete=complete,
        )

    def _evaluations_beside(self, metrics: MetricsSummary) -> list[dict[str, Any]]:
        """Return the evaluations of ``labkit evaluate`` that the training hasn't made itself."""
        validated = ({"split": "validation", "step": step} for step in metrics.validated)
        known = (*metrics.tests, *validated)
        return evaluations_that_count(self._evaluations.rows, metrics.resume_points, known, by_views=True)

    def _all_damage(self) -> Iterator[str]:
        """Yield a sentence for each of the run's files that can't be read."""
        if self._damage:
            yield self._damage
        if self._status is None and self._signatures.get("status.json"):
            yield "status.json is damaged"
        elif self._status is None and self._metrics and self._metrics.last_step:
            yield "status.json is missing"
        for name, reason in self._unread.items():
            yield f"{name} can't be read: {reason}"
        evaluations = self._evaluations.damaged_lines + damaged_rows(self._evaluations.rows)
        counts = {"metrics.jsonl": self._metrics.damaged_lines if self._metrics else 0}
        for name, lines in (counts | {"evaluations.jsonl": evaluations}).items():
            if lines:
                yield f"left out of {name}: {counted(lines, 'damaged line')}"


def _accuracy(row: Row) -> float | None:
    return number(row.get("accuracy"))


def _reason(status: Status | None, state: str) -> str:
    """Return why the run is in its state, in words for people."""
    if status is None:
        return ""
    if state == "lost":
        return f"process {status.pid} no longer exists and gave no reason"
    if state == "stalled" and status.state in ACTIVE_STATES:
        try:
            return time.strftime("no heartbeat since %Y-%m-%d %H:%M:%S", time.localtime(status.heartbeat))
        except (ValueError, OverflowError, OSError):
            return "no heartbeat"
    if status.state in ACTIVE_STATES and status.heartbeat - time.time() > status.stalled_after_seconds:
        return (
            f"{status.message}; its heartbeat lies in the future: a clock was set, and a stall wouldn't show"
        )
    return status.message
