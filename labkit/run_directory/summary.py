"""One line of a table of runs, for ``labkit runs`` and the dashboard's first page. Standard library only.

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
from labkit.run_directory.lineage import read_lineage
from labkit.run_directory.metrics import (
    MetricsSummary,
    Row,
    damaged_rows,
    evaluation_key,
    evaluations_path,
    evaluations_that_count,
    own_test,
)
from labkit.run_directory.notes import Notes, notes_path, read_notes
from labkit.run_directory.rows import RowReader, number

__all__ = ["Described", "RunSummary", "Summaries"]

BLOCK_BYTES = 1 << 22  # read between two looks at the clock
GRACE_NANOSECONDS = 2 * 10**9  # of file systems: the status is written after the rows


@dataclass(frozen=True)
class Described:
    """What a configuration says: names of data set and model, all values, and those that aren't defaults."""

    dataset: str | None = None
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSummary:
    """What is known of a run. None stands for what isn't known.

    Attributes:
        state: ``starting``, ``running``, ``stalled``, ``lost``, ``finished``, ``interrupted``, ``failed``, or
            ``unknown`` without a readable status.
        message: the reason of the state, or what is wrong with the run's files.
        progress: the fraction of the steps that is done, 0 to 1.
        accuracy: of the test set, before its evaluation the latest on validation; 0 to 1, as the other two.
        accuracy_split: which of both it is.
        training_loss: of the last step, in nats; may be NaN or infinite.
        duration: seconds of training, without the pauses between two sessions.
        last_active: when the status was last written, in seconds since 1970.
        settings: the values that differ from the defaults; None where the configuration is damaged.
        values: all values of the configuration by their names; empty where it is damaged.
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
    progress: float | None
    accuracy: float | None
    accuracy_split: str | None
    best_validation_accuracy: float | None
    test_accuracy: float | None
    training_loss: float | None
    examples_per_second: float | None
    duration: float | None
    last_active: float
    dataset: str | None
    model: str | None
    settings: Mapping[str, Any] | None
    values: Mapping[str, Any]
    notes: Notes
    results: Mapping[str, Row]
    spark: tuple[float, ...]
    forked_from: str | None = None
    complete: bool = True
    other_tests: tuple[Row, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since the run was last active."""
        return max(0.0, time.time() - self.last_active)

    def to_json(self) -> dict[str, Any]:
        """Return the summary for programs, ready for JSON: NaN and infinity are None."""
        names = [name for name in self.__dataclass_fields__ if name not in _NOT_IN_JSON]
        values = {name: getattr(self, name) for name in names}
        finite = {name: None if _is_no_number(value) else value for name, value in values.items()}
        return {
            **finite,
            "age": self.age,
            "settings": None if self.settings is None else dict(self.settings),
            "tags": list(self.notes.tags),
            "note": self.notes.note,
            "archived": self.notes.archived,
            "spark": list(self.spark),
        }


_NOT_IN_JSON = ("last_active", "values", "notes", "results", "complete", "other_tests", "damage")

Describe = Callable[[Mapping[str, Any]], Described]
Signature = tuple[int, int, int] | None


class _Known:
    """What was last read of one run."""

    def __init__(self, run: RunDirectory) -> None:
        self.seen: dict[str, Signature] = {}
        self.status: Status | None = None
        self.described: Described | None = None
        self.damage = ""
        self.notes = Notes()
        self.forked_from: str | None = None
        self.summary: RunSummary | None = None
        self.from_status: Status | None = None  # when the metrics were last looked at
        self.metrics: MetricsSummary | None = None  # None: there was no time to read it
        self.from_rows = False  # the writer kept no summary, or was killed
        self.reader: Any = None  # of such a run, while it is read or written
        self.unread: dict[str, str] = {}  # what can't be opened, and why
        self.evaluations = RowReader(evaluations_path(run.metrics_path))

    def changed(self, path: Path) -> bool:
        """Return whether the file is another one than at the last call."""
        signature = _signature(path)
        before = self.seen.get(path.name, ())
        self.seen[path.name] = signature
        return before != signature


class Summaries:
    """Summarises runs, again and again. Several threads may share one.

    Args:
        describe: reads a configuration, and raises InputError if it is damaged:
            ``labkit.config.recorded.describe``.
    """

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._known: dict[Path, _Known] = {}
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
            runs = list(runs)
            listed = {run.path for run in runs}
            self._known = {path: known for path, known in self._known.items() if path in listed}
            return [self._summary(run, deadline) for run in runs]

    def _summary(self, run: RunDirectory, deadline: float) -> RunSummary:
        known = self._known.get(run.path)
        if known is None:
            known = self._known[run.path] = _Known(run)
        changed = self._read(run, known)
        changed |= _read_metrics(run, known, deadline)
        # The state of an active run may change without a file: its process may be gone.
        active = known.status is not None and known.status.state in ACTIVE_STATES
        if changed or active or known.summary is None:
            known.summary = _summarised(run, known)
        return known.summary

    def _read(self, run: RunDirectory, known: _Known) -> bool:
        """Read the small files that have changed. Returns whether there were any."""
        status, notes, config = map(known.changed, (run.status_path, notes_path(run), run.config_path))
        if status:
            known.status = run.read_status()
        if notes:
            known.notes = read_notes(run)
        if config:
            lineage = read_lineage(run)
            known.forked_from = f"{Path(lineage.parent).name}, step {lineage.step}" if lineage else None
            try:
                known.described, known.damage = self._describe(run.read_config()), ""
            except InputError as error:
                known.described, known.damage = None, str(error)
        return status or notes or config


def _read_metrics(run: RunDirectory, known: _Known, deadline: float) -> bool:
    """Look at the metrics until ``deadline``. Returns whether anything has changed."""
    changed = known.changed(run.metrics_path)
    if known.changed(known.evaluations.path):
        changed = True
        known.unread.pop(known.evaluations.path.name, None)
        try:
            known.evaluations.poll()
        except OSError as error:
            known.unread[known.evaluations.path.name] = str(error.strerror)
    seen = known.metrics if known.from_status is known.status else None
    # An active run's summary may be behind its rows; once its process is gone, the rows count.
    if not changed and seen is not None and (known.from_rows or _is_of(seen, known)):
        return False
    written = MetricsSummary.from_json(known.status.metrics) if known.status else None
    if written is not None and _is_of(written, known):
        known.metrics, known.reader, known.from_status = written, None, known.status
        known.from_rows = False
        return True
    if time.monotonic() >= deadline and known.reader is None:
        return changed
    from labkit.run_directory.reader import MetricsReader, summary_of  # with NumPy, so only where needed

    known.reader = known.reader or MetricsReader(run.metrics_path)
    known.unread.pop(run.metrics_path.name, None)
    try:
        while True:
            known.reader.poll(BLOCK_BYTES)
            if known.reader.caught_up:
                known.metrics, known.from_status = summary_of(known.reader), known.status
                known.from_rows = True
                if known.status is None or known.status.liveness() not in ACTIVE_STATES:
                    known.reader = None  # it has all rows; of a thousand runs they would fill the memory
                return True
            if time.monotonic() >= deadline:
                return changed
    except OSError as error:
        known.metrics, known.from_status = MetricsSummary(), known.status
        known.from_rows, known.reader = True, None
        known.unread[run.metrics_path.name] = str(error.strerror)
        return True


def _is_of(summary: MetricsSummary, known: _Known) -> bool:
    """Return whether a summary tells of the file that is there, or of a run that still writes it."""
    found, status = known.seen.get("metrics.jsonl"), known.seen.get("status.json")
    if known.status is not None and known.status.liveness() in ACTIVE_STATES:
        return summary.file_bytes <= (found[1] if found else 0)
    if found is None or status is None:
        return found is None and summary.file_bytes == 0
    changed, size, _ = found
    return size == summary.file_bytes and changed <= status[0] + GRACE_NANOSECONDS


def _summarised(run: RunDirectory, known: _Known) -> RunSummary:
    status, complete = known.status, known.metrics is not None
    metrics = known.metrics or MetricsSummary()
    state = status.liveness() if status else "unknown"
    steps = [
        step for step in (number(status.step) if status else None, metrics.last_step) if step is not None
    ]
    step = int(max(steps)) if steps else None
    total = (number(status.total_steps) if status else None) or _configured_steps(known)
    beside = _beside(known, metrics) if complete else []
    tests = [row for row in beside if row.get("split") == "test"]
    test = own_test(metrics.tests, metrics.chosen_step, tests)
    others = [row for row in (*metrics.tests, *tests) if row is not test]
    validations = [metrics.validation] if metrics.validation else []
    validations += [row for row in beside if row.get("split") == "validation"]
    validation = max(validations, key=lambda row: number(row.get("step")) or 0, default=None)
    shown = validation if test is None else test
    bests = [metrics.best_accuracy, *(number(row.get("accuracy")) for row in validations)]
    described = known.described
    damage = tuple(_damage(run, known))
    return RunSummary(
        name=run.name,
        path=str(run.path),
        state=state,
        message="; ".join(filter(None, (_reason(status, state), *damage))),
        damage=damage,
        step=step,
        total_steps=None if total is None else int(total),
        progress=min(max(step / total, 0.0), 1.0) if step is not None and total else None,
        accuracy=_of(shown, "accuracy"),
        accuracy_split=None if shown is None else str(shown["split"]),
        best_validation_accuracy=max((best for best in bests if best is not None), default=None),
        test_accuracy=_of(test, "accuracy"),
        training_loss=metrics.training_loss,
        examples_per_second=number(status.examples_per_second) if status else None,
        duration=metrics.duration,
        last_active=_last_active(known),
        dataset=described.dataset if described else None,
        model=described.model if described else None,
        settings=described.settings if described else None,
        values=described.values if described else {},
        notes=known.notes,
        other_tests=tuple(others),
        results={str(row["split"]): row for row in (test, validation) if row is not None},
        spark=metrics.spark,
        forked_from=known.forked_from,
        complete=complete,
    )


def _beside(known: _Known, metrics: MetricsSummary) -> list[Row]:
    """Return the evaluations of ``labkit evaluate`` that the training hasn't made itself."""
    there = {*map(evaluation_key, metrics.tests), *(_validation(step) for step in metrics.validated)}
    more = evaluations_that_count(known.evaluations.rows, metrics.resume_points, by_views=True)
    return [row for row in more if evaluation_key(row) not in there]


def _configured_steps(known: _Known) -> float | None:
    return number(known.described.values.get("train_steps")) if known.described else None


def _validation(step: int) -> tuple[str, float, str]:
    return evaluation_key({"split": "validation", "step": step})


def _damage(run: RunDirectory, known: _Known) -> Iterator[str]:
    """Yield a sentence for each of the run's files that can't be read."""
    if known.damage:
        yield known.damage
    if known.status is None and known.seen.get("status.json"):
        yield "status.json is damaged"
    elif known.status is None and known.metrics and known.metrics.last_step:
        yield "status.json is missing"
    counts = {"metrics.jsonl": known.metrics.damaged_lines if known.metrics else 0}
    counts["evaluations.jsonl"] = known.evaluations.damaged_lines + damaged_rows(known.evaluations.rows)
    for name, reason in known.unread.items():
        yield f"{name} can't be read: {reason}"
    for name, lines in counts.items():
        if lines:
            yield f"left out of {name}: {counted(lines, 'damaged line')}"


def _of(row: Row | None, key: str) -> float | None:
    return None if row is None else number(row.get(key))


def _reason(status: Status | None, state: str) -> str:
    """Return why the run is in its state, in words for people."""
    if status is None:
        return ""
    if state == "lost":
        return f"process {status.pid:.0f} no longer exists and gave no reason"
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


def _last_active(known: _Known) -> float:
    """Return when the status was written, or else the configuration, as ``RunDirectory.last_active``."""
    seen = known.seen.get("status.json") or known.seen.get("config.json")
    return seen[0] / 1e9 if seen else 0.0


def _signature(path: Path) -> Signature:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
