"""How each worker of a cluster spends its time, in two files a worker in the run directory, and which workers
take much longer for a step than the others.

One file has a row a second, for the dashboard and the notebook; the other the last steps, moment by moment,
for ``labkit trace``.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec

from labkit.errors import InputError
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.rows import RowReader

SECONDS_BETWEEN_ROWS = 1.0
KEPT_STEPS = 50  # whose moments are kept


@dataclass(frozen=True)
class StepSpans:
    """What a worker did in a step, and when, in seconds of its clock since 1970.

    ``began``: when the step before had ended. ``ends``: what it did and when that ended, in order: ``input``,
    ``compute``, ``exchange``, ``rest`` (recording, callbacks, and waiting for others there). ``seen``: when
    the coordinator of asynchronous steps heard of it, by its own clock; None where the worker itself writes.
    """

    step: int
    began: float
    ends: Annotated[tuple[tuple[str, float], ...], msgspec.Meta(min_length=1)]
    seen: float | None = None


@dataclass
class _Window:
    """What a worker has done since its last row. Times are in seconds."""

    since: float = field(default_factory=time.perf_counter)
    steps: int = 0
    waited: float = 0.0
    exchanged: float = 0.0
    worked: float = 0.0
    bytes_sent: float = 0.0
    bytes_received: float = 0.0
    staleness: Counter[int] = field(default_factory=Counter)
    last_step: int = 0
    is_fed: bool = False  # others hand out its batches


class WorkerMetrics:
    """Writes a row a second for each worker into ``<run>/cluster/<job>-<index>.jsonl``.

    Args:
        folder: ``<run>/cluster``.
        examples_per_step: of one worker.
        replicas: devices of one worker.
        first_step: the run's completed steps when this session starts. Earlier rows of later steps no
            longer count.
    """

    def __init__(self, folder: Path, *, examples_per_step: float, replicas: int, first_step: int = 0) -> None:
        self._folder, self._examples, self._replicas = folder, examples_per_step, replicas
        self._first_step = first_step
        self._workers: dict[str, _Worker] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        worker: str,
        step: int,
        *,
        waited: float | None,
        worked: float,
        exchanged: float,
        bytes_sent: float = 0.0,
        bytes_received: float = 0.0,
        staleness: int | None = None,
        spans: StepSpans | None = None,
    ) -> float | None:
        """Count a step of ``worker``.

        Args:
            worker: name of its task, such as ``worker:0``.
            step: completed steps of the run.
            waited: seconds that the worker waited for input. None where another process hands out the
                batches: all time outside of the steps then counts as waiting.
            worked: seconds of the step.
            exchanged: seconds of communication within the step. NaN if it isn't measured: it then counts
                as computing.
            bytes_sent, bytes_received: between the worker and other processes in the step.
            staleness: of the update; None in synchronous training.
            spans: what it did when.

        Returns the worker's examples per second if a row was written, else None.
        """
        is_first = worker not in self._workers
        if is_first:
            self._workers[worker] = _Worker(self._folder, worker, self._first_step)
        if spans is not None:
            self._workers[worker].keep(spans)
        if is_first:  # it compiles; counting starts after it
            return None
        window = self._workers[worker].window
        window.steps += 1
        if waited is None:
            window.is_fed = True
        else:
            window.waited += waited
        window.worked += worked
        window.exchanged += exchanged
        window.bytes_sent += bytes_sent
        window.bytes_received += bytes_received
        if staleness is not None:
            window.staleness[staleness] += 1
        window.last_step = step
        if time.perf_counter() - window.since < SECONDS_BETWEEN_ROWS:
            return None
        return self._write(self._workers[worker])

    def _write(self, worker: "_Worker") -> float:
        """Write the row of the window that ends now, and start the next window."""
        window = worker.window
        seconds = time.perf_counter() - window.since
        rate = window.steps * self._examples / seconds
        communication = window.exchanged / seconds
        known = 0.0 if math.isnan(communication) else min(1.0, communication)
        computing = min(1.0, max(0.0, window.worked / seconds - known), 1.0 - known)
        rest = 1.0 - computing - known
        waiting = rest if window.is_fed else min(rest, window.waited / seconds)
        row = {
            "worker": worker.name,
            "step": window.last_step,
            "steps": window.steps,
            "examples_per_second": rate,
            "replica_examples_per_second": rate / self._replicas,
            "compute_fraction": computing,
            "communication_fraction": communication,
            "input_wait_fraction": waiting,
            "other_fraction": rest - waiting,
            # A synchronous worker waits within its step for the slowest one, an asynchronous one for nobody.
            "own_seconds_per_step": (window.worked - (0.0 if window.is_fed else window.exchanged))
            / window.steps,
            "bytes_sent_per_step": window.bytes_sent / window.steps,
            "bytes_received_per_step": window.bytes_received / window.steps,
            "wall_time": time.time(),
        }
        if window.staleness:
            counts = sorted(window.staleness.items())
            row["staleness_counts"] = {str(staleness): count for staleness, count in counts}
        worker.write(row)
        worker.window = _Window()
        return rate

    def finish(self) -> None:
        """Write a row of what was counted so far for each worker."""
        for worker in self._workers.values():
            if worker.window.steps:
                self._write(worker)

    def begin(self) -> None:
        """Start counting again, so that the time of an evaluation or a checkpoint is left out."""
        for worker in self._workers.values():
            worker.window = _Window()

    def close(self) -> None:
        """Write what was counted and close the files."""
        self.finish()
        for worker in self._workers.values():
            if worker.writer is not None:
                worker.writer.close()
        self._workers.clear()


class _Worker:
    """What is known of one worker, and its two files."""

    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        task = name.replace(":", "-")
        self.name, self.window = name, _Window()
        self.writer: MetricsWriter | None = None
        self._first_step, self._path = first_step, folder / f"{task}.jsonl"
        self._spans_path = folder / "spans" / f"{task}.json"
        self._spans: deque[StepSpans] = deque(maxlen=KEPT_STEPS)

    def keep(self, spans: StepSpans) -> None:
        if not self._spans:  # after a restart it makes the same steps again, at other moments
            self._spans_path.unlink(missing_ok=True)
        self._spans.append(spans)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, and replace the moments of the last steps."""
        if self.writer is None:
            resumed = self._path.exists()
            self.writer = MetricsWriter(self._path)
            if resumed:
                self.writer.mark_resume_point(self._first_step)
        self.writer.append([row])
        if self._spans:
            self._spans_path.parent.mkdir(exist_ok=True)
            write_json_atomic(
                self._spans_path, {"worker": self.name, "steps": [asdict(each) for each in self._spans]}
            )


def read_worker_metrics(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each worker by its name, in the order written. Empty if no worker wrote any.

    Args:
        folder: ``<run>/cluster``.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        rows = [row for row in RowReader(path).poll() if isinstance(row.get("worker"), str)]
        if rows:
            found[rows[-1]["worker"]] = rows
    return found


def read_spans(folder: Path) -> dict[str, list[StepSpans]]:
    """Return what each worker did in its last steps, by its name.

    Args:
        folder: ``<run>/cluster``.

    Raises InputError for a damaged file: without a worker, the others would seem to wait for nobody.
    """
    found = {}
    for path in sorted(folder.glob("spans/*.json")):
        try:
            content = read_json(path)
            found[str(content["worker"])] = msgspec.convert(content["steps"], list[StepSpans])
        except (OSError, ValueError, LookupError):
            raise InputError(f"{path} is damaged; remove it to see the other workers") from None
    return found


BEGINS_AT = 1.5  # times the median of the other workers
ENDS_BELOW = 1.25  # lower, so that a worker near the limit isn't named again and again
KEPT_ROWS = 5  # of each worker, about a second each
NEEDED_ROWS = 2
# A worker with older rows than this, compared with the newest of all, is lost or has ended.
SECONDS_BEHIND = 60.0


@dataclass(frozen=True)
class Straggler:
    """A slow worker: its seconds a step, and the median of the other workers' seconds."""

    worker: str
    seconds: float
    others: float

    @property
    def in_words(self) -> str:
        times = f"{self.seconds / self.others:.1f} times as long as the others (median {self.others:.3f} s)"
        return f"{self.worker} takes {self.seconds:.3f} s a step, {times}"


def find_stragglers(
    rows: Mapping[str, Iterable[Mapping[str, Any]]], earlier: Collection[str] = ()
) -> list[Straggler]:
    """Return the workers that take 1.5 times as long for a step as the median of the others.

    Args:
        rows: the last ``KEPT_ROWS`` rows of each worker, by its name.
        earlier: those found the last time. They stay until they take less than 1.25 times as long.
    """
    seconds = _seconds_per_step(rows)
    found = []
    for worker, own in seconds.items():
        others = median(value for name, value in seconds.items() if name != worker) if len(seconds) > 1 else 0
        limit = ENDS_BELOW if worker in earlier else BEGINS_AT
        if others > 0 and own >= limit * others:
            found.append(Straggler(worker, own, others))
    return found


def _seconds_per_step(rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the mean of each worker that has enough recent rows."""
    usable = {worker: [row for row in of_worker if _is_usable(row)] for worker, of_worker in rows.items()}
    newest = max((of_worker[-1]["wall_time"] for of_worker in usable.values() if of_worker), default=0.0)
    seconds = {}
    for worker, of_worker in usable.items():
        if len(of_worker) < NEEDED_ROWS or of_worker[-1]["wall_time"] < newest - SECONDS_BEHIND:
            continue
        steps = sum(row["steps"] for row in of_worker)
        seconds[worker] = sum(row["own_seconds_per_step"] * row["steps"] for row in of_worker) / steps
    return seconds


def _is_usable(row: Mapping[str, Any]) -> bool:
    """Return whether a row has numbers; the seconds are NaN where communication isn't measured."""
    values = [row.get(name) for name in ("own_seconds_per_step", "steps", "wall_time")]
    numbers = all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    return numbers and row["steps"] > 0


class Stragglers:
    """Follows the metrics of all workers, for the chief's console.

    Args:
        folder: ``<run>/cluster``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[str, RowReader] = {}
        self._rows: dict[str, deque[dict[str, Any]]] = {}
        self._earlier: frozenset[str] = frozenset()
        self._read()
        self._rows.clear()  # rows of an earlier session say nothing about this one

    def news(self) -> list[str]:
        """Read what was appended, and return a line for each straggler that begins or ends."""
        self._read()
        found = {straggler.worker: straggler for straggler in find_stragglers(self._rows, self._earlier)}
        lines = [
            f"straggler: {straggler.in_words}"
            for worker, straggler in found.items()
            if worker not in self._earlier
        ]
        lines += [f"{worker} is no straggler any more" for worker in sorted(self._earlier - found.keys())]
        self._earlier = frozenset(found)
        return lines

    def _read(self) -> None:
        for path in self._folder.glob("*.jsonl"):
            reader = self._readers.setdefault(path.name, RowReader(path, keep_rows=False))
            try:
                rows = reader.poll()
            except OSError:  # of another host's file system; the next call reads on
                continue
            for row in rows:
                self._rows.setdefault(str(row.get("worker")), deque(maxlen=KEPT_ROWS)).append(row)
