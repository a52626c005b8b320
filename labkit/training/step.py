"""The compiled training and prediction steps."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.distributed.packing import read_packed, send_packed
from labkit.models.folding import folded_normalization
from labkit.models.layers import BatchNormalization, recorded_batch_statistics
from labkit.models.resizing import shrunk, with_image_size
from labkit.models.test_time_augmentation import averaged_over_views
from labkit.optim.lookahead import Lookahead
from labkit.optim.sgd import SGD
from labkit.training.losses import SOFTMAX, Loss
from labkit.transfer.freezing import Frozen, frozen_layers, frozen_norms, trained_indices

__all__ = ["make_predict_step", "make_train_step"]


def make_train_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: SGD,
    step: tf.Variable,
    *,
    global_batch_size: int,
    loss: Loss = SOFTMAX,
    label_smoothing: float,
    standardize: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
    lookahead: Lookahead | None = None,
    remote_variables: bool = False,
    deterministic: bool = False,
    frozen: Frozen = frozenset(),
    image_size: int | None = None,
    xla: bool = False,
) -> Callable[[Any, Any, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return ``train_step(images, labels, learning_rate, stop)``.

    ``images`` and ``labels`` are what the distributed data set yields; ``learning_rate`` a float32 scalar;
    ``stop`` a float32 scalar, 1 where this process was asked to stop. The step returns float [n + 2] (with
    softmax [3]): loss and the n ``step_metrics`` of the global batch, such as accuracy, and how many replicas
    were asked to stop, equal in every process; and float64 [2], seconds: how long a worker took from its
    batch to the last update of a remote variable (0 where they are local), and for how long this process's
    first replica exchanged values with other devices or processes and did nothing else, waiting for the
    slowest included. (Synchronized batch normalization exchanges in the middle of the network; that counts
    as computing.)

    ``step`` grows by one a call; it is the run's only counter (Keras's ``iterations`` loses updates under
    several writers).

    Args:
        loss: of each example, and the figures that belong to it.
        standardize: makes of the images what the model takes, on the device that trains.
        lookahead: averages the weights behind the updates; not with remote variables.
        remote_variables: whether the variables are on parameter servers: they are read once at the start,
            and the update is made where they are.
        deterministic: whether TensorFlow's operations are held to give the same bits each time. It refuses to
            look at the clock then, and both times are NaN.
        frozen: names of layers that stay as they are: no gradient, no decay, no velocity, no statistics. What
            only their gradients would need isn't computed.
        image_size: side of the images that the network is shown; None: as they come.
        xla: whether XLA compiles loss and gradients; for one replica a process, with variables of its own.
    """
    network = model if image_size is None else with_image_size(model, image_size)
    places = trained_indices(model, frozen)
    trained = [model.trainable_variables[place] for place in places]
    held_norms = frozen_norms(model, frozen)
    exchanges = remote_variables or strategy.num_replicas_in_sync > 1
    timed = exchanges and not deterministic

    def update(strategy, gradients, statistics, learning_rate, norm_layers):
        variables = [variable.value for variable in trained]
        averages = [
            average.value for layer in norm_layers for average in (layer.moving_mean, layer.moving_variance)
        ]
        if remote_variables:
            sent = [strategy.experimental_local_results(value)[0] for value in [*gradients, *statistics]]
            received = send_packed(sent, [*variables, *averages])
            gradients, statistics = received[: len(variables)], received[len(variables) :]
        reduced = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        exchanged_at = tf.constant(0.0, tf.float64)
        if timed and not remote_variables:
            exchanged_at = _time_after([strategy.experimental_local_results(value)[0] for value in reduced])
        updates = optimizer.apply(strategy, reduced, learning_rate, places)
        _update_moving_averages(strategy, averages, statistics, [layer.decay for layer in norm_layers])
        return _time_after(updates) if timed and remote_variables else exchanged_at

    norm_layers: list[BatchNormalization] = []  # those that ``compute`` has statistics of, once it is traced

    def compute(weights, images, labels):
        """Return what this replica's slice gives: loss and figures, gradients, batch statistics."""
        # Told what to watch, the tape doesn't look at what only frozen weights have computed.
        with (
            tf.GradientTape(watch_accessed_variables=False) as tape,
            recorded_batch_statistics(held_norms) as recorded,
        ):
            tape.watch(weights)
            shown = standardize(images) if image_size is None else shrunk(standardize(images), image_size)
            logits = network(shown, training=True)
            losses = loss.per_example(labels, logits, label_smoothing)
            # The one place where the loss is scaled: a sum over all replicas of per-example losses over
            # the global batch size is the mean over the global batch, however it is sliced.
            mean_loss = tf.reduce_sum(losses) / global_batch_size
        norm_layers[:] = [layer for layer, _, _ in recorded]
        figures = [
            tf.reduce_sum(tf.cast(figure(labels, logits), mean_loss.dtype)) / global_batch_size
            for figure in loss.step_metrics.values()
        ]
        statistics = [value for _, mean, variance in recorded for value in (mean, variance)]
        return [mean_loss, *figures], tape.gradient(mean_loss, weights), statistics

    own_weights = [variable.value for variable in trained]
    compiled = tf.function(functools.partial(compute, own_weights), jit_compile=True)

    def replica_step(images, labels, learning_rate, stop):
        started_at = _time_after([images, labels]) if timed else tf.constant(0.0, tf.float64)
        read_at = started_at
        if remote_variables:
            with contextlib.ExitStack() as scope:
                held = [weight for layer in frozen_layers(model, frozen) for weight in layer.weights]
                copies, read_at = _read_once(trained, held, scope)
                figures, gradients, statistics = compute(copies, images, labels)
        elif xla:
            figures, gradients, statistics = compiled(images, labels)
        else:
            figures, gradients, statistics = compute(own_weights, images, labels)
        computed_at = _time_after(gradients) if timed else started_at
        exchanged_at = tf.distribute.get_replica_context().merge_call(
            functools.partial(update, norm_layers=norm_layers),
            args=(gradients,),
            kwargs={"statistics": statistics, "learning_rate": learning_rate},
        )
        exchanged = (read_at - started_at) + (exchanged_at - computed_at) if timed else started_at
        worked = exchanged_at - started_at if remote_variables else tf.zeros_like(started_at)
        times = tf.stack([worked, exchanged])
        if exchanges and deterministic:
            times = tf.fill([2], tf.constant(math.nan, tf.float64))
        return tf.stack([*figures, tf.cast(stop, figures[0].dtype)]), times

    @tf.function(reduce_retracing=True)
    def train_step(images, labels, learning_rate, stop):
        figures, seconds = strategy.run(replica_step, args=(images, labels, learning_rate, stop))
        number = step.assign_add(1, read_value=True)
        if lookahead:
            lookahead.after(strategy, number, frozen)
        figures = strategy.reduce(tf.distribute.ReduceOp.SUM, figures, axis=None)
        return figures, strategy.experimental_local_results(seconds)[0]

    return train_step


def _time_after(tensors) -> tf.Tensor:
    """Return the time at which all ``tensors`` were there, float64 seconds."""
    with tf.control_dependencies(list(tensors)):
        return tf.timestamp()


def _read_once(
    trained: list[keras.Variable], held: list[keras.Variable], scope: contextlib.ExitStack
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Let the model use one copy of its remote variables within ``scope``.

    Returns the copies of the ``trained`` ones, and the time at which all were there, ``held`` ones included.
    """
    variables = [*trained, *held]
    values = read_packed([variable.value for variable in variables])
    scope.enter_context(keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))))
    return values[: len(trained)], _time_after(values)


def _update_moving_averages(strategy, averages, statistics, decays) -> None:
    """Move each moving average towards the mean over the replicas of their batches' statistics.

    Args:
        averages: of mean and variance, layer by layer; so are ``statistics``.
        decays: one for each layer.
    """
    if not averages:
        return
    reduced = strategy.extended.batch_reduce_to(
        tf.distribute.ReduceOp.MEAN, list(zip(statistics, averages, strict=True))
    )

    def move(average, value, decay: float):
        return average.assign_sub((1.0 - decay) * (average - value))

    for place, (average, value) in enumerate(zip(averages, reduced, strict=True)):
        strategy.extended.update(average, move, args=(value, decays[place // 2]), group=False)


def make_predict_step(
    strategy: tf.distribute.Strategy, model: keras.Model, views: str = "none"
) -> Callable[[Any], Any]:
    """Return ``predict_step(images)`` -> logits float32 [batch, num_classes], per replica.

    Batch normalization is folded into the convolutions (``labkit.models.folding``).

    Args:
        views: of each image, over which the logits are averaged (``labkit.models.test_time_augmentation``).
    """

    def predict(images):
        with folded_normalization(model):
            return averaged_over_views(lambda shown: model(shown, training=False), images, views)

    @tf.function(reduce_retracing=True)
    def predict_step(images):
        return strategy.run(predict, args=(images,))

    return predict_step
