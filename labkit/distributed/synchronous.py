"""The engine of synchronous training: one step after the other, with all other workers."""

import functools
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from labkit.distributed.peers import PeerLost
from labkit.distributed.slow_worker import SlowWorker
from labkit.distributed.step_result import StepResult, Steps
from labkit.distributed.strategies import everywhere
from labkit.run_directory.worker_metrics import StepSpans

__all__ = ["SynchronousEngine"]


class SynchronousEngine:
    """Runs the training steps of this process, synchronously with all other workers, if any.

    Args:
        steps: compiled.
        batches: the distributed batches from the next step on.
        step: steps completed so far.
        stopping: returns whether this process was asked to stop.
        name: this worker's name.
        beginning: is called with each step, when its input is there.
        slowness: how many times as long as it takes this worker waits in all, for experiments.
    """

    def __init__(
        self,
        steps: Steps,
        batches: Iterator[Any],
        *,
        step: int,
        stopping: Callable[[], bool],
        name: str,
        beginning: Callable[[int], None] = lambda step: None,
        slowness: float = 1.0,
    ) -> None:
        self._steps, self._batches = steps, batches
        self._step, self._stopping, self._name, self._beginning = step, stopping, name, beginning
        self._alone = steps.num_workers == 1
        self._all_stop = False
        self._ended: float | None = None  # the last step, in seconds since 1970
        self._slow_worker = SlowWorker(slowness)

    def next_step(self, *, start_more: bool = True) -> StepResult:
        """Run one step. ``start_more`` is ignored: only the asynchronous engine uses it."""
        asked, started = time.time(), time.perf_counter()
        images, labels = next(self._batches)
        waited = time.perf_counter() - started
        learning_rate = self._steps.learning_rate_at(self._step)
        train_step = self._steps.compiled_at(self._step)
        arguments = (
            images,
            labels,
            tf.constant(learning_rate, tf.float32),
            tf.constant(float(self._stopping()), tf.float32),
        )
        self._beginning(self._step + 1)
        metrics, moments, *observed = train_step(*arguments)
        *values, stops = metrics.numpy().tolist()
        self._all_stop = stops > 0
        exchange_began, exchange_ended = moments.numpy().tolist()
        exchanged = exchange_ended - exchange_began
        self._slow_worker.wait(train_step, time.perf_counter() - started - waited - exchanged)
        exchanged_bytes = self._steps.exchanged_bytes_at(self._step)
        observation = self._steps.observation(self._step, *observed) if observed else None
        self._step += 1
        seconds = time.perf_counter() - started
        began, ended = self._ended or asked, asked + seconds
        ends = [("rest", asked), ("input", asked + waited), ("rest", ended)]
        if exchanged > 0:
            ends[2:2] = [("compute", exchange_began), ("exchange", exchange_ended)]
        self._ended = ended
        return StepResult(
            step=self._step,
            metrics=self._steps.named(values),
            learning_rate=learning_rate,
            seconds=seconds,
            waited=waited,
            exchanged=exchanged,
            worker=self._name,
            worker_seconds=seconds - waited,
            bytes_sent=exchanged_bytes,
            bytes_received=exchanged_bytes,
            observation=observation,
            spans=StepSpans(self._step, began, tuple(ends)),
        )

    def is_idle(self) -> bool:
        """Return True: no step is under way once ``next_step`` has returned."""
        return True

    def stop_is_agreed(self) -> bool:
        """Return whether a worker was asked to stop; all workers return the same after the same step."""
        return self._stopping() if self._alone else self._all_stop

    def settle(self) -> int:
        """Return the number of updates made twice, which is always 0 here."""
        return 0

    def any_worker(self, flags: int) -> int:
        """Return the bits that are set in the ``flags`` of any worker; waits for all of them."""
        if self._alone:
            return flags
        return functools.reduce(operator.or_, everywhere(self._steps.strategy, flags))

    def agree(self, value: int, what: str) -> None:
        """Wait for all workers. Raises PeerLost if they don't all have the same ``value``.

        Values come from files that all workers share, so a difference means that one reads an old version.

        Args:
            what: describes the value in the error message.
        """
        if self._alone:
            return
        values = everywhere(self._steps.strategy, value)
        if min(values) != max(values):
            raise PeerLost(
                f"the workers differ in {what}: {', '.join(map(str, values))}; does each see the newest "
                "files of the run directory?"
            )
