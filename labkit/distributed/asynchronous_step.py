"""The asynchronous training step: what one worker does between reading the weights and changing them."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from labkit.distributed.exchange import (
    compressed,
    moving_averages,
    sum_over_replicas,
    time_after,
    update_moving_averages,
)
from labkit.inspection.observer import UNOBSERVED, Unobserved
from labkit.models.freezing import Frozen, frozen_layers, frozen_norms, trained_indices
from labkit.models.layers import dropout_draws, recorded_batch_statistics, statistics_of
from labkit.models.variants import shrunk
from labkit.optim.optimizer import Optimizer


class StepReport(NamedTuple):
    """What a worker reports of one step besides its metrics.

    When it had its batch (``started``), had received the weights (``read``), had computed the gradients, and
    when the last update was made: in seconds of the worker's clock since 1970. ``staleness``: updates by
    other steps between this step's read of the weights and its own update. ``bytes_sent`` and
    ``bytes_received`` by the worker: gradients and batch statistics; weights and the batch.
    """

    started: float
    read: float
    computed: float
    updated: float
    staleness: float
    bytes_sent: float
    bytes_received: float

    @property
    def seconds(self) -> float:
        """From the batch to the last update."""
        return self.updated - self.started

    @property
    def exchanged(self) -> float:
        """Seconds of that in which tensors were sent to the servers and received."""
        return (self.read - self.started) + (self.updated - self.computed)


def make_asynchronous_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: Optimizer,
    step: tf.Variable,
    *,
    metrics_of: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    adapts_averages: bool = False,
    standardize: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    frozen: Frozen = frozenset(),
    image_size: int | None = None,
    slow_worker: tuple[int, float] | None = None,
    compression: str = "none",
    observer: Unobserved = UNOBSERVED,
) -> Callable[..., tuple[Any, ...]]:
    """Return ``train_step(images, labels, learning_rate, stop)``, to be compiled and run on one worker.

    The variables are on parameter servers. The worker reads each variable once, in packed tensors, and sends
    its gradients and batch statistics to the servers that hold the variables. ``images`` are uint8 pixels as
    stored, a quarter of the bytes of float32; ``standardize`` turns them into the network's input.
    ``metrics_of`` returns a batch's mean loss and other metrics, from labels and logits.
    ``adapts_averages``: those of batch normalization forget the first steps (``update_moving_averages``).
    ``slow_worker``: the index of a worker that waits after it has computed its gradients, and how many times
    as long as the computing it takes in all. Gradients are ``compressed`` on their way to the servers.

    ``train_step`` returns the metrics of ``training.step.make_train_step``, and float64 [7], the fields of
    ``StepReport``. Then come the tensors of ``observer``; where another worker updates a weight at the same
    time, the change of the weight that it sees may contain the other update.
    """
    network = observer.network(model, image_size)
    indices = trained_indices(model, frozen)
    trained = [model.trainable_variables[index] for index in indices]
    held = [weight for layer in frozen_layers(model, frozen) for weight in layer.weights]
    held_norms = frozen_norms(model, frozen)

    def send_and_update(strategy, gradients, statistics, activations, learning_rate, done):
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
            statistics = dict(zip(statistics, pairs, strict=True))
            update_moving_averages(strategy, model, statistics, done if adapts_averages else None)
        # Grouped, so that each server reports the end of its updates once.
        with tf.control_dependencies([tf.group(updates)]):
            earlier_updates = _count_update(step)
        return time_after([earlier_updates]), earlier_updates, _num_bytes(sent)

    def replica_step(images, labels, learning_rate, stop):
        started_at = time_after([images, labels])
        with tf.device(step.device):  # on its server
            updates_when_read = tf.raw_ops.ReadVariableOp(resource=step.handle, dtype=tf.int64)
        # Before the first weight is read, so that an update in between counts as missed.
        with tf.control_dependencies([updates_when_read]):
            copies = read_packed([variable.value for variable in (*trained, *held)])
        read_at = time_after(copies)
        weights = copies[: len(trained)]
        with contextlib.ExitStack() as scope:
            replaced = list(zip((*trained, *held), copies, strict=True))
            scope.enter_context(keras.StatelessScope(state_mapping=replaced))
            tape = scope.enter_context(tf.GradientTape(watch_accessed_variables=False))
            recorded = scope.enter_context(recorded_batch_statistics(held_norms))
            scope.enter_context(dropout_draws(updates_when_read, 0, tf.shape(images)[0]))
            tape.watch(weights)
            shown = standardize(images) if image_size is None else shrunk(standardize(images), image_size)
            logits = network(shown, training=True)
            metrics = metrics_of(labels, logits)
        gradients = tape.gradient(metrics[0], weights, unconnected_gradients="zero")
        if slow_worker is not None:
            gradients = slowed_down(gradients, slow_worker, since=read_at)
        computed_at = time_after(gradients)
        statistics = statistics_of(model, recorded)
        updated_at, earlier_updates, bytes_sent = tf.distribute.get_replica_context().merge_call(
            send_and_update,
            args=(
                compressed(gradients, compression),
                statistics,
                observer.activations(),
                learning_rate,
                updates_when_read,
            ),
        )
        report = StepReport(
            started=started_at,
            read=read_at,
            computed=computed_at,
            updated=updated_at,
            staleness=earlier_updates - updates_when_read,
            bytes_sent=bytes_sent,
            bytes_received=_num_bytes([*copies, images, labels]),
        )
        report = tf.stack([tf.cast(value, tf.float64) for value in report])
        return tf.stack([*metrics, tf.cast(stop, metrics[0].dtype)]), report

    def train_step(images, labels, learning_rate, stop):
        metrics, report = strategy.run(replica_step, args=(images, labels, learning_rate, stop))
        metrics = strategy.reduce(tf.distribute.ReduceOp.SUM, metrics, axis=None)
        return metrics, strategy.experimental_local_results(report)[0], *observer.tensors

    return train_step


def _count_update(step: tf.Variable) -> tf.Tensor:
    """Add one to ``step`` and return its value before, as one atomic operation on its server.

    ``assign_add`` followed by a read would also count an update that ends between the two.
    """
    with tf.device(step.device):
        return tf.raw_ops.ResourceCountUpTo(resource=step.handle, limit=tf.int64.max, T=tf.int64)


def _num_bytes(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the bytes of all ``tensors``, int64 scalar."""
    return tf.add_n([tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors])


def slowed_down(
    tensors: Sequence[tf.Tensor], slow_worker: tuple[int, float], *, since: tf.Tensor
) -> list[tf.Tensor]:
    """Delay ``tensors`` on the slow worker to ``factor`` times the time since ``since`` (``--slow-worker``).

    For a step that a ``ClusterCoordinator`` schedules on any of its workers. The wait is an operation of the
    step's graph, because the worker runs no Python; it occupies a thread, but no core.

    Args:
        tensors: what the worker has computed.
        slow_worker: its index, and the factor.
        since: time at which it started computing, float64 seconds.
    """
    index, factor = slow_worker
    here = tf.distribute.coordinator.experimental_get_current_worker_index()
    seconds = tf.where(tf.equal(here, index), factor - 1, 0.0)
    waited = _sleep(tf.cast(seconds, tf.float64) * (time_after(tensors) - since))
    with tf.control_dependencies([waited]):
        return [tf.identity(tensor) for tensor in tensors]


def _sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Return a tensor that is there after ``seconds``: the one element of a dataset that takes so long."""
    like = {"output_types": [tf.int32], "output_shapes": [[]]}
    with tf.device("CPU:0"):
        element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
        slow = tf.raw_ops.SleepDataset(
            input_dataset=element, sleep_microseconds=tf.cast(seconds * 1e6, tf.int64), **like
        )
        # Without it, the look for a second element would take as long again.
        first = tf.raw_ops.TakeDataset(input_dataset=slow, count=tf.constant(1, tf.int64), **like)
        return tf.raw_ops.DatasetToSingleElement(dataset=first, **like)[0]


# ---- packing: many small tensors go between devices as one message per device and dtype. TensorFlow makes
# one call for every tensor that crosses from one task to another. A ResNet-20 has about two hundred of them
# in a step, most below a kilobyte, so the number of calls dominates the cost.


def read_packed(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``variables`` on the current device, inside a ``tf.function``.

    Each device that holds some of them sends one tensor per dtype.
    """
    copies: dict[int, tf.Tensor] = {}
    for indices in _by_device(variables, [variable.dtype for variable in variables]):
        with tf.device(variables[indices[0]].device):
            packed = _pack([variables[index] for index in indices])
        copies |= _unpack(packed, indices, variables)  # on the current device, so only ``packed`` is sent
    return [copies[index] for index in range(len(variables))]


def send_packed(values: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``values``, each on the device of its variable, inside a ``tf.function``.

    Each device that holds some of the variables receives one tensor per dtype.

    Args:
        values: on the current device, with the variables' shapes.
        variables: one for each value.
    """
    copies: dict[int, tf.Tensor] = {}
    for indices in _by_device(variables, [value.dtype for value in values]):
        packed = _pack([values[index] for index in indices])
        with tf.device(variables[indices[0]].device):
            copies |= _unpack(packed, indices, variables)
    return [copies[index] for index in range(len(values))]


def _by_device(variables: Sequence[tf.Variable], dtypes: Sequence[tf.DType]) -> list[list[int]]:
    """Return the indices of the variables, grouped by device and dtype."""
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for index, (variable, dtype) in enumerate(zip(variables, dtypes, strict=True)):
        groups.setdefault((variable.device, dtype), []).append(index)
    return list(groups.values())


def _pack(values: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def _unpack(
    packed: tf.Tensor, indices: Sequence[int], variables: Sequence[tf.Variable]
) -> dict[int, tf.Tensor]:
    """Return the tensors of ``packed``, with the variables' shapes, by index."""
    shapes = [variables[index].shape for index in indices]
    parts = tf.split(packed, [math.prod(shape) for shape in shapes])
    return {index: tf.reshape(part, shape) for index, part, shape in zip(indices, parts, shapes, strict=True)}
