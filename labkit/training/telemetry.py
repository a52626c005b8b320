"""What a run records while it trains: metrics, TensorBoard events and status."""

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from labkit.config.config import recorded_config
from labkit.distributed.membership import Membership
from labkit.distributed.synchronous import StepResult
from labkit.run_directory import RunDirectory, Status
from labkit.run_directory.disk import disk_failure
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader, summary_of
from labkit.run_directory.worker_metrics import Stragglers, WorkerMetrics
from labkit.tensorboard.events import EventWriter
from labkit.training.network import Network

SECONDS_BETWEEN_STATUSES = 0.5
SECONDS_TO_START = 300.0  # a first step may compile for minutes


@dataclass
class _Sum:
    """Some steps: how many, their work, their seconds, and how many of these they waited for their input."""

    steps: int = 0
    work: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0


class Pace:
    """Measures the speed of a session: since the last console line, and on average.

    Both leave out the first step, because it compiles.

    Args:
        global_batch_size: examples of a step.
        left_after: returns the work after a step, in steps of whole images, and the examples evaluated.
    """

    def __init__(self, global_batch_size: int, left_after: Callable[[int], tuple[float, int]]) -> None:
        self._global_batch_size, self._left_after = global_batch_size, left_after
        self._session, self._lap = _Sum(), _Sum()
        self._compiled = False
        self._evaluation_seconds: float | None = None  # of an example

    def add(self, step: int, seconds: float, waited: float) -> None:
        """Count ``step``, which took ``seconds``, including ``waited`` seconds for its input."""
        for total in (self._session, self._lap) if self._compiled else ():
            total.steps += 1
            total.work += self._left_after(step - 1)[0] - self._left_after(step)[0]
            total.seconds += seconds
            total.waited += waited
        self._compiled = True

    def add_overhead(self, seconds: float) -> None:
        """Add time between two steps, such as that of callbacks, to the last step."""
        for total in (self._session, self._lap):
            total.seconds += seconds if total.steps else 0.0

    def add_evaluation(self, seconds: float, examples: int) -> None:
        """Note how long an evaluation took."""
        self._evaluation_seconds = seconds / examples

    def seconds_left(self, step: int) -> float | None:
        """Return the expected time from ``step`` to the end, evaluations included; None before two steps."""
        if not self._session.work:
            return None
        work, evaluated = self._left_after(step)
        per_step = self._session.seconds / self._session.work
        per_example = self._evaluation_seconds
        if per_example is None:  # forward is about a third of a step
            per_example = per_step / self._global_batch_size / 3
        return per_step * work + per_example * evaluated

    def leave_out_next(self) -> None:
        """Leave out the next step as well, because it compiles."""
        self._compiled = False

    def average_examples_per_second(self) -> float | None:
        total = self._session
        return total.steps * self._global_batch_size / total.seconds if total.seconds else None

    def seconds_per_step(self) -> float | None:
        return self._session.seconds / self._session.steps if self._session.steps else None

    def lap(self) -> dict[str, float] | None:
        """Return the metrics since the last call, or None if no step was counted."""
        lap, self._lap = self._lap, _Sum()
        if not lap.steps:
            return None
        return {
            "examples_per_second": lap.steps * self._global_batch_size / lap.seconds,
            "seconds_per_step": lap.seconds / lap.steps,
            "input_wait_fraction": lap.waited / lap.seconds,
        }


class Telemetry:
    """Writes metrics, events and status of one session into its run directory.

    Args:
        run: the run directory; it must exist and hold the configuration.
        total_steps: number of steps in the whole run.
        first_step: steps completed before this session.
        resumed: whether there was an earlier session. Its rows after ``first_step`` then no longer count.
    """

    def __init__(self, run: RunDirectory, *, total_steps: int, first_step: int, resumed: bool) -> None:
        self._run = run
        self._metrics = MetricsWriter(run.metrics_path)
        if resumed:
            self._metrics.mark_resume_point(first_step)
        self._rows = MetricsReader(run.metrics_path)
        self._rows.poll()
        self._evaluated = {(row["split"], row["step"]) for row in self._rows.evaluations}
        self._events = EventWriter(run.events_path, first_step + 1)
        self._events.configuration(recorded_config(run))
        self._status_written = -math.inf  # by a clock that nobody sets
        self._lock = threading.Lock()
        now = time.time()
        self._status = Status(
            state="starting",
            step=first_step,
            total_steps=total_steps,
            heartbeat=now,
            started=now,
            pid=os.getpid(),
            host=socket.gethostname(),
            stalled_after_seconds=SECONDS_TO_START,
        )
        self.state("starting")

    def train_row(self, row: dict[str, Any], pace: Pace) -> None:
        """Record one training step."""
        self._metrics.append([row])
        self._events.scalars(row)
        if time.monotonic() - self._status_written < SECONDS_BETWEEN_STATUSES:
            self._status = replace(self._status, step=row["step"])
            return
        seconds = pace.seconds_per_step()
        self._write(
            state="running",
            message="training",
            step=row["step"],
            examples_per_second=pace.average_examples_per_second(),
            eta_seconds=pace.seconds_left(row["step"]),
            stalled_after_seconds=SECONDS_TO_START if seconds is None else max(15.0, 20 * seconds),
        )

    def evaluation_row(self, row: dict[str, Any]) -> None:
        """Record the result of a validation or test, once for each split and step."""
        if (row["split"], row["step"]) in self._evaluated:
            return  # recorded by an earlier process that was killed after it
        self._evaluated.add((row["split"], row["step"]))
        self._metrics.append([row])
        self._events.scalars(row)

    def heartbeat(self, message: str) -> None:
        """Update the run's heartbeat while no step ends, during validation or saving."""
        if time.monotonic() - self._status_written >= SECONDS_BETWEEN_STATUSES:
            self._write(message=message)

    def compiling(self, message: str) -> None:
        """Report that the next step compiles, and may take as long as the first one."""
        self._write(message=message, stalled_after_seconds=SECONDS_TO_START)

    def state(self, state: str, message: str = "") -> None:
        """Write a new state at once."""
        ended = {} if state in ("starting", "running") else {"eta_seconds": None}
        if state == "finished":  # written before the state says that all is there
            self._events.finished()
        self._write(state=state, message=message, **ended)

    def _write(self, **changed: Any) -> None:
        with self._lock:  # threads that report a slow callback or a lost worker write, too
            self._status_written = time.monotonic()
            with suppress(OSError):  # a reader then looks into the metrics itself
                self._rows.poll()
                changed["metrics"] = summary_of(self._rows).to_json()
            self._status = replace(self._status, heartbeat=time.time(), **changed)
            self._run.write_status(self._status)

    def close(self) -> None:
        """Flush and close metrics and events. An event that the disk refused was reported before."""
        self._metrics.close()
        try:
            self._events.close()
        except Exception as error:
            if disk_failure(error) is None:
                raise


class SilentTelemetry:
    """Takes the place of ``Telemetry`` in cluster workers other than the chief, which alone writes."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class WorkerTelemetry(WorkerMetrics):
    """How a cluster's workers spend their time, for the run and for the other tasks.

    Args:
        network: that is trained.
        membership: of this process.
        first_step: the run's completed steps when this session starts.
    """

    def __init__(self, network: Network, membership: Membership, first_step: int) -> None:
        devices = network.devices
        super().__init__(
            membership.folder,
            first_step=first_step,
            # Synchronous workers share each batch; an asynchronous worker has a whole batch.
            examples_per_step=network.config.data.images_per_step / devices.num_workers,
            replicas=devices.num_local_replicas,
        )
        # An asynchronous worker gets its batches from the coordinator; its wait isn't measured.
        self._membership, self._measures_waits = membership, not devices.asynchronous_workers
        self._stragglers = Stragglers(membership.folder) if membership.task.is_chief else None

    def record(self, result: StepResult) -> list[str]:
        """Count a step. Returns lines about workers that have become slow, or quick again."""
        rate = self.add(
            result.worker,
            result.step,
            waited=result.waited if self._measures_waits else None,
            worked=result.worker_seconds,
            exchanged=result.exchanged,
            bytes_sent=result.bytes_sent,
            bytes_received=result.bytes_received,
            staleness=result.staleness,
            spans=result.spans,
        )
        self._membership.tell(result.step, rate, result.seconds)
        return [] if rate is None or self._stragglers is None else self._stragglers.news()  # once a second
