"""The coordinator of asynchronous training: hands out steps and collects their results."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from labkit.distributed.asynchronous_step import StepReport
from labkit.distributed.heartbeat import Attempts
from labkit.distributed.synchronous import StepResult, Steps
from labkit.plurals import counted
from labkit.run_directory.worker_metrics import StepSpans
from labkit.startup.tf_compat import hold_attempts, is_here, worker_of

STEPS_UNDER_WAY = 4  # per worker: one running, the next queued, the rest in reserve for slow workers
LOOK_SECONDS = 0.005  # between two looks for failed steps; a step takes many times as long


class WorkerStuck(RuntimeError):
    """A step has neither ended nor failed, and its worker sends no heartbeat."""


@dataclass
class _UnderWay:
    step_index: int  # from 0
    learning_rate: float
    waited: float
    result: Any  # RemoteValue


class AsynchronousEngine:
    """Schedules steps on whichever worker is free, with a ``ClusterCoordinator``.

    The coordinator numbers the steps. Step s always has the same batch and learning rate, and is scheduled
    again, by TensorFlow, if its worker is lost before its result is here. So a lost worker never costs a
    batch, and whenever no step is under way, all steps so far are complete. A variable on a parameter server
    counts the updates (atomically, so that none is lost); ``repeated_updates`` compares this count with the
    number of completed steps.

    Args:
        steps: compiled under a ``ParameterServerStrategy``.
        batches: batches from step ``step`` on. The coordinator sends them, so they are the same as in
            synchronous training, and a replaced worker needs no state.
        step: steps completed so far.
        pause_after: returns the first step after one with a validation or a checkpoint due, at most another.
            All steps up to it end before the next one starts.
        stopping: returns whether this process was asked to stop.
        stuck: returns the names of workers whose heartbeats have stopped.
        patience: seconds without a completed step before ``stuck`` is called.
        attempts: is told which worker makes a step, and when it ends.
        max_staleness: how many updates others may make while a step runs; None: any number.
    """

    def __init__(
        self,
        steps: Steps,
        batches: Iterator[Any],
        *,
        step: int,
        pause_after: Callable[[int, int], int],
        stopping: Callable[[], bool],
        stuck: Callable[[], list[str]],
        patience: float,
        attempts: Attempts,
        max_staleness: int | None = None,
    ) -> None:
        self._steps, self._batches = steps, batches
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(steps.strategy)
        self._attempts, self._attempt_ended = attempts, threading.Event()
        self._limit = None if max_staleness is None else StalenessLimit(max_staleness)
        hold_attempts(self._coordinator, self._attempt)
        self._step = self._started_steps = step
        self._pause_after = pause_after
        self._stopping, self._stuck, self._patience = stopping, stuck, patience
        self._under_way: list[_UnderWay] = []
        self._workers = steps.num_workers
        self._end_times: list[float] = []
        self._go = tf.constant(0.0, tf.float32)

    @contextmanager
    def _attempt(self, worker: str) -> Iterator[None]:
        with self._limit.attempt() if self._limit else nullcontext(), self._attempts.attempt(worker):
            yield
        self._attempt_ended.set()

    @property
    def _window(self) -> int:
        """Return how many steps may be under way at the same time."""
        return STEPS_UNDER_WAY * self._workers

    def is_idle(self) -> bool:
        """Return whether no step is under way."""
        return not self._under_way

    def stop_is_agreed(self) -> bool:
        """Return whether this process was asked to stop; the coordinator decides alone."""
        return self._stopping()

    def next_step(self, *, start_more: bool = True) -> StepResult:
        """Schedule steps on the workers and return the next completed one.

        Steps after the next validation or checkpoint aren't scheduled yet, so that no step is under way
        then. Without ``start_more``, no step is scheduled at all.

        Raises WorkerStuck if a worker is silent, and TensorFlow's error if a parameter server is lost.
        """
        if not self._under_way:
            self._end_times = [time.perf_counter()] * self._workers  # no step's time includes a pause
        limit = self._pause_after(self._step, self._step + self._window) if start_more else 0
        while self._started_steps < limit and len(self._under_way) < self._window:
            self._give_out()
        item = self._next_ready()
        metrics, report, *observed = item.result.fetch()
        return self._collected(item, metrics, StepReport(*report.tolist()), *observed)

    def _give_out(self) -> None:
        started, step_index = time.perf_counter(), self._started_steps
        batch = next(self._batches)
        waited = time.perf_counter() - started
        learning_rate = self._steps.learning_rate_at(step_index)
        arguments = (*batch, tf.constant(learning_rate, tf.float32), self._go)
        result = self._coordinator.schedule(self._steps.compiled_at(step_index), args=arguments)
        self._under_way.append(_UnderWay(step_index, learning_rate, waited, result))
        self._started_steps += 1

    def _next_ready(self) -> _UnderWay:
        waiting_since = time.monotonic()
        while True:
            for item in self._under_way:
                if is_here(item.result):
                    self._under_way.remove(item)
                    return item
            self._attempt_ended.wait(LOOK_SECONDS)
            self._attempt_ended.clear()
            if time.monotonic() - waiting_since > self._patience:
                stuck = self._stuck()
                if stuck:
                    raise WorkerStuck(f"{', '.join(stuck)} has sent no heartbeat, and its step has not ended")
                waiting_since = time.monotonic()

    def _collected(self, item: _UnderWay, metrics: Any, report: StepReport, *observed: Any) -> StepResult:
        *values, _ = metrics.tolist()
        now = time.perf_counter()
        # Averaged over as many steps as there are workers, because their steps end in bursts.
        since = (now - self._end_times[0]) / self._workers
        self._end_times = [*self._end_times[1:], now]
        self._step += 1
        return StepResult(
            step=self._step,
            metrics=self._steps.named(values),
            learning_rate=item.learning_rate,
            seconds=max(since, 1e-9),
            waited=min(item.waited, since),
            exchanged=report.exchanged,
            worker=worker_of(item.result),
            worker_seconds=report.seconds,
            bytes_sent=report.bytes_sent,
            bytes_received=report.bytes_received,
            staleness=int(report.staleness),
            observation=self._steps.observation(item.step_index, *observed) if observed else None,
            spans=StepSpans(
                self._step,
                report.started,
                (("exchange", report.read), ("compute", report.computed), ("exchange", report.updated)),
                seen=time.time(),
            ),
        )

    def repeated_updates(self) -> int:
        """Compare the servers' count of updates with the completed steps, while no step is under way.

        Returns the number of updates made twice: if a worker is lost between its update and its report,
        another worker repeats its step. The servers' count is then set to the number of steps. Raises
        RuntimeError if an update was lost or a step is still under way.
        """
        if self._under_way:
            raise RuntimeError(f"{counted(len(self._under_way), 'step')} still under way")
        surplus = int(self._steps.updates.numpy()) - self._step
        if surplus < 0:
            raise RuntimeError(f"{-surplus} of {self._step} updates were lost on the parameter servers")
        if surplus:
            self._steps.updates.assign(self._step)
        return surplus

    def any_worker(self, flags: int) -> int:
        """Return ``flags``: the coordinator decides alone."""
        return flags

    def agree(self, value: int, what: str) -> None:
        """Do nothing: only the coordinator holds the value."""


# A lost worker's servers may still make an update that they have received in full; it takes milliseconds.
SECONDS_TO_SETTLE = 1.0


class StalenessLimit:
    """Lets a step start only if no step can then exceed ``limit`` updates by others while it runs.

    A step reads the weights after it has started here, and has made its update when it ends here. So the
    updates between its read and its own are at most one for each step that was running when it started, and
    one for each step that started since. These are counted for each running step; a new one starts once its
    own count is at most ``limit`` and no other's count would exceed it.

    A step that is made again, because its worker was lost, starts here again and counts again. Waiting steps
    wait for running ones alone, so there is no deadlock. Used by one thread for each worker.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._others: dict[object, int] = {}  # of each running step: updates that others can make meanwhile
        self._changed = threading.Condition()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Wait until a step may start, and let it run within this context."""
        step = object()
        with self._changed:
            self._changed.wait_for(self._may_start)
            for other in self._others:
                self._others[other] += 1
            self._others[step] = len(self._others)
        try:
            yield
        except tf.errors.OpError:
            time.sleep(SECONDS_TO_SETTLE)
            raise
        finally:
            with self._changed:
                del self._others[step]
                self._changed.notify_all()

    def _may_start(self) -> bool:
        return len(self._others) <= self._limit and all(
            count < self._limit for count in self._others.values()
        )
