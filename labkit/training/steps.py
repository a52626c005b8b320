"""The compiled training and prediction steps."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.models.layers import recorded_batch_statistics
from labkit.training.losses import softmax_cross_entropy
from labkit.training.optimizers import SGD

__all__ = ["make_predict_step", "make_train_step"]


def make_train_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: SGD,
    step: tf.Variable,
    *,
    global_batch_size: int,
    label_smoothing: float,
) -> Callable[[Any, Any, tf.Tensor], tf.Tensor]:
    """Return ``train_step(images, labels, learning_rate)`` -> float32 [2]: loss and accuracy of the batch.

    ``images`` and ``labels`` are what the distributed data set yields. ``step`` grows by one a call; it is
    the run's only counter (Keras's ``iterations`` loses updates under several writers).
    """

    def update(strategy, gradients, statistics, learning_rate, norm_layers):
        variables = [variable.value for variable in model.trainable_variables]
        gradients = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        optimizer.apply(strategy, gradients, learning_rate)
        _update_moving_averages(strategy, norm_layers, statistics)

    def replica_step(images, labels, learning_rate):
        with tf.GradientTape() as tape, recorded_batch_statistics() as recorded:
            logits = model(images, training=True)
            losses = softmax_cross_entropy(labels, logits, label_smoothing)
            # The one place where the loss is scaled: a sum over all replicas of per-example losses over
            # the global batch size is the mean over the global batch, however it is sliced.
            loss = tf.reduce_sum(losses) / global_batch_size
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        norm_layers = [layer for layer, _, _ in recorded]
        statistics = [(mean, variance) for _, mean, variance in recorded]
        context = tf.distribute.get_replica_context()
        context.merge_call(
            functools.partial(update, norm_layers=norm_layers),
            args=(gradients,),
            kwargs={"statistics": statistics, "learning_rate": learning_rate},
        )
        correct = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.cast(labels, tf.int32))
        accuracy = tf.reduce_sum(tf.cast(correct, tf.float32)) / global_batch_size
        return tf.stack([loss, accuracy])

    @tf.function(reduce_retracing=True)
    def train_step(images, labels, learning_rate):
        per_replica = strategy.run(replica_step, args=(images, labels, learning_rate))
        step.assign_add(1)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    return train_step


def _update_moving_averages(strategy, norm_layers, statistics) -> None:
    """Move each moving average towards the mean over the replicas of their batches' statistics."""
    averages, values, decays = [], [], []
    for layer, (mean, variance) in zip(norm_layers, statistics, strict=True):
        averages += [layer.moving_mean.value, layer.moving_variance.value]
        values += [mean, variance]
        decays += [layer.decay, layer.decay]
    if not averages:
        return
    reduced = strategy.extended.batch_reduce_to(
        tf.distribute.ReduceOp.MEAN, list(zip(values, averages, strict=True))
    )

    def move(average, value, decay: float):
        return average.assign_sub((1.0 - decay) * (average - value))

    for average, value, decay in zip(averages, reduced, decays, strict=True):
        strategy.extended.update(average, move, args=(value, decay), group=False)


def make_predict_step(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[Any], Any]:
    """Return ``predict_step(images)`` -> logits float32 [batch, num_classes], per replica."""

    @tf.function(reduce_retracing=True)
    def predict_step(images):
        return strategy.run(lambda batch: model(batch, training=False), args=(images,))

    return predict_step
