"""Training steps on the workers of a parameter-server cluster, each at its own pace."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from labkit.distributed.tf_compat import remote_step_error, wait_for_remote_value, worker_of
from labkit.training.engines import StepResult
from labkit.training.session import Session

__all__ = ["AsynchronousEngine", "WorkerStuck"]

STEPS_UNDER_WAY = 4  # for each worker: one being made, the next at hand, room for a worker that is slow
WORKER_GONE = (  # what the copying of a lost worker's tensor raises, as in cluster_coordinator.py
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InvalidArgumentError,
)
LOOK_SECONDS = 0.005  # between two looks for completed steps; a step takes many times as long


class WorkerStuck(RuntimeError):
    """A step neither ended nor failed, and its worker gives no sign of life."""


@dataclass
class _UnderWay:
    number: int  # from 0
    batch: tuple[Any, Any]
    learning_rate: float
    waited: float
    result: Any  # RemoteValue


class AsynchronousEngine:
    """Steps that a ``ClusterCoordinator`` hands to whichever worker is free.

    The coordinator numbers the steps: number s has the batch and the learning rate of step s, and it is
    given out again where a worker died before it could report. So every batch is trained with, whoever dies,
    and after ``limit`` steps all numbers below it are done. A variable on a parameter server counts the
    updates as they are made (``assign_add``, which loses none); the two are compared in ``settle``.

    Args:
        session: model and compiled step, under a ``ParameterServerStrategy``.
        batches: batches from step ``step`` on. The coordinator sends them: they are the very ones that any
            other way of training has, and a worker that is replaced needs no state.
        learning_rate: of step ``number``, from 0.
        step: steps completed so far.
        stopping: whether this process was asked to stop.
        stuck: returns the names of workers that have long given no sign of life.
        patience: seconds without any completed step after which ``stuck`` is asked.
    """

    def __init__(
        self,
        session: Session,
        batches: Iterator[Any],
        learning_rate: Callable[[int], float],
        *,
        step: int,
        stopping: Callable[[], bool],
        stuck: Callable[[], list[str]],
        patience: float,
    ) -> None:
        self._session, self._batches, self._learning_rate = session, batches, learning_rate
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(session.strategy)
        self._completed = self._started = step
        self._stopping, self._stuck, self._patience = stopping, stuck, patience
        self._under_way: list[_UnderWay] = []
        self._workers = session.plan.asynchronous_workers
        self._ends: list[float] = []
        self._go = tf.constant(0.0, tf.float32)

    @property
    def started(self) -> int:
        """Return how many steps have begun."""
        return self._started

    @property
    def window(self) -> int:
        """Return how many steps may be under way at the same time."""
        return STEPS_UNDER_WAY * self._workers

    def stop_is_agreed(self) -> bool:
        """Return whether this process, which decides alone, was asked to stop."""
        return self._stopping()

    def next_step(self, limit: int) -> StepResult:
        """Give out steps below ``limit`` and return the next one that is completed.

        Raises WorkerStuck, and what TensorFlow raises where a parameter server is lost.
        """
        if not self._under_way:
            self._ends = [time.perf_counter()] * self._workers  # what was done meanwhile is no step's time
        while self._started < limit and len(self._under_way) < self.window:
            self._give_out()
        while True:
            item = self._next_ready()
            try:
                figures, seconds = item.result.fetch()
            except WORKER_GONE:
                if remote_step_error(item.result) is not None:  # the step itself failed; else the copying did
                    raise
                # The worker died between its report and the copying of its figures: the coordinator counts
                # the step as done and gives it to nobody. ``settle`` sees that its update was made twice.
                self._schedule(item.number, item.batch, item.learning_rate, item.waited)
            else:
                return self._collected(item, figures, seconds)

    def _give_out(self) -> None:
        started = time.perf_counter()
        batch = next(self._batches)
        waited = time.perf_counter() - started
        self._schedule(self._started, batch, self._learning_rate(self._started), waited)
        self._started += 1

    def _schedule(self, number: int, batch: tuple[Any, Any], learning_rate: float, waited: float) -> None:
        arguments = (*batch, tf.constant(learning_rate, tf.float32), self._go)
        result = self._coordinator.schedule(self._session.train_step_at(number), args=arguments)
        self._under_way.append(_UnderWay(number, batch, learning_rate, waited, result))

    def _next_ready(self) -> _UnderWay:
        waiting_since = time.monotonic()
        while True:
            for item in self._under_way:
                if wait_for_remote_value(item.result, 0.0):
                    self._under_way.remove(item)
                    return item
            wait_for_remote_value(self._under_way[0].result, LOOK_SECONDS)
            if time.monotonic() - waiting_since > self._patience:
                stuck = self._stuck()
                if stuck:
                    raise WorkerStuck(f"{', '.join(stuck)} has sent no heartbeat, and its step has not ended")
                waiting_since = time.monotonic()

    def _collected(self, item: _UnderWay, figures: Any, seconds: Any) -> StepResult:
        *values, _ = figures.tolist()
        worked, exchanged = seconds.tolist()
        now = time.perf_counter()
        # The time since as many steps ago as there are workers: steps of several workers end in bursts.
        since = (now - self._ends[0]) / self._workers
        self._ends = [*self._ends[1:], now]
        self._completed += 1
        return StepResult(
            self._completed, self._session.loss.named(values), item.learning_rate, max(since, 1e-9),
            min(item.waited, since), exchanged, worker_of(item.result), worked,
        )  # fmt: skip

    def settle(self) -> int:
        """Compare the servers' count of updates with the completed steps, when none is under way.

        Returns how many updates were made twice: a worker that dies between its update and its report has
        its step given to another one. The count is then set to the steps. Raises RuntimeError where an
        update was lost.
        """
        if self._under_way:
            raise RuntimeError(f"{len(self._under_way)} steps are still under way")
        surplus = int(self._session.step.numpy()) - self._completed
        if surplus < 0:
            raise RuntimeError(f"{-surplus} of {self._completed} updates were lost on the parameter servers")
        if surplus:
            self._session.step.assign(self._completed)
        return surplus

    def agree(self, value: int, what: str) -> None:
        """Do nothing: the coordinator alone has values to agree on."""
