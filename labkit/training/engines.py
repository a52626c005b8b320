"""What makes one training step after the other: in this process (or in step with others), or on workers."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from labkit.peers import PeerLost
from labkit.training.evaluate import gathered
from labkit.training.session import Session

__all__ = ["StepResult", "SynchronousEngine"]


@dataclass(frozen=True)
class StepResult:
    """One completed training step.

    ``step`` counts from 1 in order of their ends (asynchronous steps may begin in another order). ``figures``
    of its batch, by the keys of a metrics row: ``loss``, ``accuracy``, and what the loss adds. ``seconds`` of
    wall time that the step accounts for, of which ``waited`` for the input. ``worker`` made it:
    ``worker_seconds`` from its batch to its end, of which ``exchanged`` between devices or processes (NaN
    where that isn't measured).
    """

    step: int
    figures: dict[str, float]
    learning_rate: float
    seconds: float
    waited: float
    exchanged: float
    worker: str
    worker_seconds: float


class SynchronousEngine:
    """Steps of this process, in step with all other workers where there are any.

    Args:
        session: model and compiled step.
        batches: the distributed batches from the next step on.
        learning_rate: of step ``number``, from 0.
        step: steps completed so far.
        stopping: whether this process was asked to stop.
        name: of this worker.
        on_first_batch: called once before the first step, with the compiled step, the arguments that it will
            be called with, and the number of steps completed.
    """

    def __init__(
        self,
        session: Session,
        batches: Iterator[Any],
        learning_rate: Callable[[int], float],
        *,
        step: int,
        stopping: Callable[[], bool],
        name: str,
        on_first_batch: Callable[[Any, tuple[Any, ...], int], None] | None = None,
    ) -> None:
        self._session, self._batches, self._learning_rate = session, batches, learning_rate
        self._step, self._stopping, self._name = step, stopping, name
        self._on_first_batch = on_first_batch
        self._alone = session.plan.num_workers == 1
        self._all_stop = False

    @property
    def started(self) -> int:
        """Return how many steps have begun: all of them have ended, too."""
        return self._step

    @property
    def window(self) -> int:
        """Return how many steps may be under way at the same time."""
        return 1

    def stop_is_agreed(self) -> bool:
        """Return whether every worker knows, after the same step, that one was asked to stop."""
        return self._stopping() if self._alone else self._all_stop

    def next_step(self, limit: int) -> StepResult:
        """Make one update."""
        started = time.perf_counter()
        images, labels = next(self._batches)
        waited = time.perf_counter() - started
        learning_rate = self._learning_rate(self._step)
        train_step = self._session.train_step_at(self._step)
        arguments = (
            images,
            labels,
            tf.constant(learning_rate, tf.float32),
            tf.constant(float(self._stopping()), tf.float32),
        )
        if self._on_first_batch:
            self._on_first_batch(train_step, arguments, self._step)
            self._on_first_batch = None
        figures, seconds = train_step(*arguments)
        *values, stops = figures.numpy().tolist()
        self._all_stop = stops > 0
        self._step += 1
        elapsed = time.perf_counter() - started
        exchanged = float(seconds.numpy()[1])
        return StepResult(
            self._step,
            self._session.loss.named(values),
            learning_rate,
            elapsed,
            waited,
            exchanged,
            self._name,
            elapsed - waited,
        )

    def agree(self, value: int, what: str) -> None:
        """Wait for all workers here. Raises PeerLost where they don't have the same ``value``.

        They share the file system that they have it from, so one of them sees an old state of it.

        Args:
            what: says in the error what the value is.
        """
        if self._alone:
            return
        values = everywhere(self._session.strategy, value)
        if min(values) != max(values):
            raise PeerLost(
                f"the workers differ in {what}: {', '.join(map(str, values))}; does each see the newest "
                "files of the run directory?"
            )


def everywhere(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    """Return the ``value`` of every replica, in order; waits for all workers."""
    local = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([value], tf.int64))
    return gathered(strategy)(local).numpy().tolist()
