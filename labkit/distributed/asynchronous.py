"""Asynchronous training: steps on the workers of a parameter-server cluster, without synchronization."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from labkit.distributed.exchange import (
    moving_averages,
    sum_over_replicas,
    time_after,
    update_moving_averages,
)
from labkit.distributed.packing import read_packed, send_packed
from labkit.distributed.step_result import StepResult
from labkit.distributed.tf_compat import remote_step_error, wait_for_remote_value, worker_of
from labkit.inspection.observer import UNOBSERVED, Unobserved
from labkit.models.layers import recorded_batch_statistics
from labkit.models.resizing import shrunk
from labkit.plurals import counted
from labkit.transfer.freezing import Frozen, frozen_layers, frozen_norms, trained_indices

if TYPE_CHECKING:
    from labkit.config.triggers import Triggers
    from labkit.optim.sgd import SGD
    from labkit.training.losses import Loss
    from labkit.training.session import Session

__all__ = ["AsynchronousEngine", "WorkerStuck", "make_asynchronous_step"]

STEPS_UNDER_WAY = 4  # per worker: one running, the next queued, the rest in reserve for slow workers
WORKER_GONE = (  # errors of copying a tensor from a lost worker, as in cluster_coordinator.py
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InvalidArgumentError,
)
LOOK_SECONDS = 0.005  # polling interval for completed steps; a step takes many times as long


class WorkerStuck(RuntimeError):
    """A step has neither ended nor failed, and its worker sends no heartbeat."""


def make_asynchronous_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: "SGD",
    step: tf.Variable,
    *,
    global_batch_size: int,
    loss: "Loss",
    label_smoothing: float = 0.0,
    standardize: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    frozen: Frozen = frozenset(),
    image_size: int | None = None,
    observer: Unobserved = UNOBSERVED,
) -> Callable[..., tuple[Any, ...]]:
    """Return ``train_step(images, labels, learning_rate, stop)``, to be compiled and run on one worker.

    The variables are on parameter servers. The worker reads each variable once, in packed tensors, and sends
    its gradients and batch statistics to the servers that hold the variables. ``images`` are uint8 pixels as
    stored, a quarter of the bytes of float32; ``standardize`` turns them into the network's input.

    ``train_step`` returns the metrics of ``training.step.make_train_step``, and float64 [2]: the seconds from
    the batch to the last update, and the part of them spent exchanging tensors with the servers. Then come
    the tensors of ``observer``. Where other workers update a weight at the same time, the change of the
    weight that it sees may contain theirs.
    """
    network = observer.network(model, image_size)
    indices = trained_indices(model, frozen)
    trained = [model.trainable_variables[index] for index in indices]
    held = [weight for layer in frozen_layers(model, frozen) for weight in layer.weights]
    held_norms = frozen_norms(model, frozen)

    def send_and_update(strategy, gradients, statistics, activations, learning_rate):
        variables = [variable.value for variable in trained]
        averages = moving_averages(model, statistics)
        values = [*gradients, *(value for pair in statistics.values() for value in pair)]
        sent = [strategy.experimental_local_results(value)[0] for value in values]
        received = send_packed(sent, [*variables, *averages])
        gradients, moments = received[: len(variables)], iter(received[len(variables) :])
        gradients = sum_over_replicas(strategy, gradients, variables)
        with observer.update(strategy, activations, gradients, indices):
            updates = optimizer.apply(strategy, gradients, learning_rate, indices)
            pairs = zip(moments, moments, strict=True)  # mean, variance, mean, …
            update_moving_averages(strategy, model, dict(zip(statistics, pairs, strict=True)))
        return time_after(updates)

    def replica_step(images, labels, learning_rate, stop):
        started_at = time_after([images, labels])
        copies = read_packed([variable.value for variable in (*trained, *held)])
        read_at = time_after(copies)
        weights = copies[: len(trained)]
        with contextlib.ExitStack() as scope:
            replaced = list(zip((*trained, *held), copies, strict=True))
            scope.enter_context(keras.StatelessScope(state_mapping=replaced))
            tape = scope.enter_context(tf.GradientTape(watch_accessed_variables=False))
            recorded = scope.enter_context(recorded_batch_statistics(held_norms))
            tape.watch(weights)
            shown = standardize(images) if image_size is None else shrunk(standardize(images), image_size)
            logits = network(shown, training=True)
            metrics = loss.step_metrics_of(labels, logits, label_smoothing, global_batch_size)
        gradients = tape.gradient(metrics[0], weights)
        computed_at = time_after(gradients)
        statistics = {layer.name: (mean, variance) for layer, mean, variance in recorded}
        updated_at = tf.distribute.get_replica_context().merge_call(
            send_and_update, args=(gradients, statistics, observer.activations(), learning_rate)
        )
        exchanged = (read_at - started_at) + (updated_at - computed_at)
        seconds = tf.stack([updated_at - started_at, exchanged])
        return tf.stack([*metrics, tf.cast(stop, metrics[0].dtype)]), seconds

    def train_step(images, labels, learning_rate, stop):
        metrics, seconds = strategy.run(replica_step, args=(images, labels, learning_rate, stop))
        step.assign_add(1)
        metrics = strategy.reduce(tf.distribute.ReduceOp.SUM, metrics, axis=None)
        return metrics, strategy.experimental_local_results(seconds)[0], *observer.tensors

    return train_step


@dataclass
class _UnderWay:
    step_index: int  # from 0
    batch: tuple[Any, Any]
    learning_rate: float
    waited: float
    result: Any  # RemoteValue


class AsynchronousEngine:
    """Schedules steps on whichever worker is free, with a ``ClusterCoordinator``.

    The coordinator numbers the steps. Step s always has the same batch and learning rate, and is scheduled
    again if its worker is lost before it reports. So a lost worker never costs a batch, and whenever no step
    is under way, all steps so far are complete. A variable on a parameter server counts the updates
    (``assign_add``, which loses none); ``settle`` compares this count with the number of completed steps.

    Args:
        session: model and compiled step, under a ``ParameterServerStrategy``.
        batches: batches from step ``step`` on. The coordinator sends them, so they are the same as in
            synchronous training, and a replaced worker needs no state.
        step: steps completed so far.
        triggers: after which steps a validation or a checkpoint is due. All steps up to one of these end
            before the next one starts.
        stopping: returns whether this process was asked to stop.
        stuck: returns the names of workers whose heartbeats have stopped.
        patience: seconds without a completed step before ``stuck`` is called.
    """

    def __init__(
        self,
        session: "Session",
        batches: Iterator[Any],
        *,
        step: int,
        triggers: "Triggers",
        stopping: Callable[[], bool],
        stuck: Callable[[], list[str]],
        patience: float,
    ) -> None:
        self._session, self._batches = session, batches
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(session.strategy)
        self._step = self._started_steps = step
        self._triggers = triggers
        self._stopping, self._stuck, self._patience = stopping, stuck, patience
        self._under_way: list[_UnderWay] = []
        self._workers = session.devices.asynchronous_workers
        self._end_times: list[float] = []
        self._go = tf.constant(0.0, tf.float32)

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
        limit = self._triggers.first(self._step, self._step + self._window) if start_more else 0
        while self._started_steps < limit and len(self._under_way) < self._window:
            self._give_out()
        while True:
            item = self._next_ready()
            try:
                metrics, seconds, *observed = item.result.fetch()
            except WORKER_GONE:
                if remote_step_error(item.result) is not None:  # the step failed, not the copying
                    raise
                # The worker was lost after its report but before its metrics were copied. The coordinator
                # counts the step as done, so it is scheduled again here; ``settle`` reports the double
                # update.
                self._schedule(item.step_index, item.batch, item.learning_rate, item.waited)
            else:
                return self._collected(item, metrics, seconds, *observed)

    def _give_out(self) -> None:
        started = time.perf_counter()
        batch = next(self._batches)
        waited = time.perf_counter() - started
        self._schedule(
            self._started_steps, batch, self._session.learning_rate_at(self._started_steps), waited
        )
        self._started_steps += 1

    def _schedule(self, step_index: int, batch: tuple[Any, Any], learning_rate: float, waited: float) -> None:
        arguments = (*batch, tf.constant(learning_rate, tf.float32), self._go)
        result = self._coordinator.schedule(self._session.train_step_at(step_index), args=arguments)
        self._under_way.append(_UnderWay(step_index, batch, learning_rate, waited, result))

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

    def _collected(self, item: _UnderWay, metrics: Any, seconds: Any, *observed: Any) -> StepResult:
        *values, _ = metrics.tolist()
        worked, exchanged = seconds.tolist()
        now = time.perf_counter()
        # Averaged over as many steps as there are workers, because their steps end in bursts.
        since = (now - self._end_times[0]) / self._workers
        self._end_times = [*self._end_times[1:], now]
        self._step += 1
        observation = self._session.observation(item.step_index, *observed) if observed else None
        return StepResult(
            self._step, self._session.loss.named(values), item.learning_rate, max(since, 1e-9),
            min(item.waited, since), exchanged, worker_of(item.result), worked, observation,
        )  # fmt: skip

    def settle(self) -> int:
        """Compare the servers' count of updates with the completed steps, while no step is under way.

        Returns the number of updates made twice: if a worker is lost between its update and its report,
        another worker repeats its step. The servers' count is then set to the number of steps. Raises
        RuntimeError if an update was lost or a step is still under way.
        """
        if self._under_way:
            raise RuntimeError(f"{counted(len(self._under_way), 'step')} still under way")
        surplus = int(self._session.step.numpy()) - self._step
        if surplus < 0:
            raise RuntimeError(f"{-surplus} of {self._step} updates were lost on the parameter servers")
        if surplus:
            self._session.step.assign(self._step)
        return surplus

    def any_worker(self, flags: int) -> int:
        """Return ``flags``: the coordinator decides alone."""
        return flags

    def agree(self, value: int, what: str) -> None:
        """Do nothing: only the coordinator holds the value."""
