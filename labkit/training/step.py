"""The synchronous training step, and the engine that runs it step by step."""

import functools
import operator
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from labkit.distributed.exchange import compressed, sum_over_replicas, update_moving_averages
from labkit.distributed.gather import everywhere
from labkit.distributed.peers import PeerLost
from labkit.distributed.slow_worker import SlowWorker
from labkit.distributed.step_result import StepResult
from labkit.inspection.observer import UNOBSERVED, Unobserved
from labkit.models.dropout import dropout_draws
from labkit.models.folding import folded_normalization
from labkit.models.layers import recorded_batch_statistics
from labkit.models.resizing import shrunk
from labkit.models.test_time_augmentation import averaged_over_views
from labkit.optim.optimizer import Optimizer
from labkit.run_directory.worker_metrics import StepSpans
from labkit.training.losses import SOFTMAX, Loss
from labkit.transfer.freezing import Frozen, frozen_norms, trained_indices

if TYPE_CHECKING:
    from labkit.training.session import Session

__all__ = ["SynchronousEngine", "make_predict_step", "make_train_step"]

SMALLEST_HALF = 64  # images of half a batch that is predicted by halves: parts of 16 and 32 were slower


def make_train_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: Optimizer,
    step: tf.Variable,
    *,
    global_batch_size: int,
    loss: Loss = SOFTMAX,
    label_smoothing: float = 0.0,
    adapts_averages: bool = False,
    frozen: Frozen = frozenset(),
    image_size: int | None = None,
    follow: Callable[[Any, tf.Tensor], None] = lambda strategy, step: None,
    xla: bool = False,
    compression: str = "none",
    reduce: Callable[..., list[Any]] = sum_over_replicas,
    observer: Unobserved = UNOBSERVED,
) -> Callable[..., tf.Tensor]:
    """Return ``train_step(images, labels, learning_rate, stop)``, to be compiled by ``tf.function``.

    ``train_step`` takes a distributed batch and two float32 scalars: the learning rate, and ``stop``, 1
    if this process was asked to stop. It returns float [n + 2], equal in every process: the mean loss
    and the n ``loss.step_metrics`` of the global batch, and the number of replicas that were asked to stop.
    ``frozen`` layers aren't updated; ``follow`` is called after each update; ``observer`` sees the values.
    """
    network = observer.network(model, image_size)
    indices = trained_indices(model, frozen)
    weights = [model.trainable_variables[index].value for index in indices]

    @tf.function(jit_compile=True, autograph=False) if xla else lambda function: function
    def loss_and_gradients(images, labels, done, first):
        tape = tf.GradientTape(watch_accessed_variables=False)  # so not what only frozen weights decide
        draws = dropout_draws(done, first, global_batch_size)
        with tape, draws, recorded_batch_statistics(frozen_norms(model, frozen)) as recorded:
            tape.watch(weights)
            logits = network(images if image_size is None else shrunk(images, image_size), training=True)
            metrics = loss.step_metrics_of(labels, logits, label_smoothing, global_batch_size)
        statistics = {layer.name: (mean, variance) for layer, mean, variance in recorded}
        with tf.name_scope("gradient_tape/"):  # where the tape's own operations stand
            return metrics, compressed(tape.gradient(metrics[0], weights), compression), statistics

    def reduce_and_update(strategy, gradients, statistics, activations, learning_rate, done):
        gradients = reduce(strategy, gradients, weights)
        with observer.update(strategy, activations, gradients, indices):
            optimizer.apply(strategy, gradients, learning_rate, indices)
            update_moving_averages(strategy, model, statistics, done if adapts_averages else None)
        follow(strategy, done)

    def replica_step(images, labels, learning_rate, stop, done):
        metrics, gradients, statistics = loss_and_gradients(images, labels, done, start_of(global_batch_size))
        arguments = (gradients, statistics, observer.activations(), learning_rate, done)
        tf.distribute.get_replica_context().merge_call(reduce_and_update, args=arguments)
        return tf.stack([*metrics, tf.cast(stop, metrics[0].dtype)])

    def train_step(images, labels, learning_rate, stop):
        metrics = strategy.run(replica_step, args=(images, labels, learning_rate, stop, step.read_value()))
        step.assign_add(1)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, metrics, axis=None)

    return train_step


def start_of(global_batch_size: int) -> tf.Tensor:
    """Return where this replica's slice of the global batch begins, int32 scalar; in replica context."""
    replica = tf.distribute.get_replica_context()
    size = global_batch_size // replica.num_replicas_in_sync
    return tf.cast(replica.replica_id_in_sync_group, tf.int32) * size


def make_predict_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    test_time_augmentation: str = "none",
    *,
    has_remote_weights: bool = False,
) -> Callable[[Any], Any]:
    """Return ``predict_step(images)`` -> logits float32 [batch, num_classes], per replica.

    Batch normalization is folded into the convolutions (``models.folding``). ``test_time_augmentation``
    averages the logits over several augmented copies of each image (``models.test_time_augmentation``).
    With ``has_remote_weights``, weights are read once for each batch.
    """
    on_one_cpu = strategy.num_replicas_in_sync == 1 and not tf.config.list_logical_devices("GPU")
    one_at_a_time = tf.config.threading.get_inter_op_parallelism_threads() == 1
    # Remote weights would be read once for each half.
    by_halves = on_one_cpu and not one_at_a_time and not has_remote_weights
    network = functools.partial(_by_halves if by_halves else _whole, model)

    def predict(images):
        with folded_normalization(model):
            return averaged_over_views(network, images, test_time_augmentation)

    @tf.function(reduce_retracing=True, autograph=False)
    def predict_step(images):
        return strategy.run(predict, args=(images,))

    return predict_step


def _whole(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    return model(images, training=False)


def _by_halves(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    """Return the model's logits, where the size allows computed for two halves of the batch at a time.

    On two cores this is faster (docs/speed.md, "Inference"); the logits of ResNet-20 were bit-equal.
    """
    size = images.shape[0]
    if size is None or size % 2 or size < 2 * SMALLEST_HALF:
        return _whole(model, images)
    halves = tf.reshape(images, [2, size // 2, *images.shape[1:]])
    like = tf.as_dtype(model.outputs[0].dtype)
    logits = tf.map_fn(
        lambda half: _whole(model, half), halves, parallel_iterations=2, fn_output_signature=like
    )
    return tf.reshape(logits, [size, -1])


class SynchronousEngine:
    """Runs the training steps of this process, synchronously with all other workers, if any.

    Args:
        session: model and compiled steps.
        batches: the distributed batches from the next step on.
        step: steps completed so far.
        stopping: returns whether this process was asked to stop.
        name: this worker's name.
        beginning: is called with each step, when its input is there.
    """

    def __init__(
        self,
        session: "Session",
        batches: Iterator[Any],
        *,
        step: int,
        stopping: Callable[[], bool],
        name: str,
        beginning: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._session, self._batches = session, batches
        self._step, self._stopping, self._name, self._beginning = step, stopping, name, beginning
        self._alone = session.devices.num_workers == 1
        self._all_stop = False
        self._ended: float | None = None  # the last step, in seconds since 1970
        self._slow_worker = SlowWorker(session.config.distribution.slowness_of(name))

    def next_step(self, *, start_more: bool = True) -> StepResult:
        """Run one step. ``start_more`` is ignored: only the asynchronous engine uses it."""
        asked, started = time.time(), time.perf_counter()
        images, labels = next(self._batches)
        waited = time.perf_counter() - started
        learning_rate = self._session.learning_rate_at(self._step)
        train_step = self._session.train_step_at(self._step)
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
        exchanged_bytes = self._session.all_reduce_bytes_at(self._step)
        observation = self._session.observation(self._step, *observed) if observed else None
        self._step += 1
        seconds = time.perf_counter() - started
        began, ended = self._ended or asked, asked + seconds
        ends = [("rest", asked), ("input", asked + waited), ("rest", ended)]
        if exchanged > 0:
            ends[2:2] = [("compute", exchange_began), ("exchange", exchange_ended)]
        self._ended = ended
        return StepResult(
            step=self._step,
            metrics=self._session.loss.named(values),
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
        return functools.reduce(operator.or_, everywhere(self._session.strategy, flags))

    def agree(self, value: int, what: str) -> None:
        """Wait for all workers. Raises PeerLost if they don't all have the same ``value``.

        Values come from files that all workers share, so a difference means that one reads an old version.

        Args:
            what: describes the value in the error message.
        """
        if self._alone:
            return
        values = everywhere(self._session.strategy, value)
        if min(values) != max(values):
            raise PeerLost(
                f"the workers differ in {what}: {', '.join(map(str, values))}; does each see the newest "
                "files of the run directory?"
            )
