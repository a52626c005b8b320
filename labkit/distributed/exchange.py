"""What replicas exchange after each backward pass: gradients, and statistics of batch normalization."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.models.freezing import Frozen, frozen_norms, trained_indices
from labkit.models.layers import norms_of

# Mean and variance [channels] of a batch, by the name of the normalization layer.
BatchStatistics = Mapping[str, tuple[tf.Tensor, tf.Tensor]]


def compressed(gradients: Sequence[tf.Tensor], compression: str) -> list[tf.Tensor]:
    """Return the gradients as they are sent: rounded to bfloat16, or as they are with ``none``.

    In replica context. ``sum_over_replicas`` turns the sums back.
    """
    return [tf.cast(each, tf.bfloat16) if compression == "bfloat16" else each for each in gradients]


def sum_over_replicas(strategy: Any, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
    """Sum each gradient over the replicas, to where its variable is; in cross-replica context.

    The gradients may be ``compressed``; the sums have the dtypes of the variables.
    """
    pairs = list(zip(gradients, variables, strict=True))
    sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    def whole(variable, value):
        return tf.cast(value, variable.dtype)

    return [
        value
        if strategy.experimental_local_results(value)[0].dtype == variable.dtype
        else strategy.extended.update(variable, whole, args=(value,))
        for value, variable in zip(sums, variables, strict=True)
    ]


def moving_averages(model: keras.Model, names: Iterable[str]) -> list[tf.Variable]:
    """Return the moving averages of the named normalization layers: mean and variance, layer by layer."""
    norms = norms_of(model)
    layers = [norms[name] for name in names]
    return [average.value for layer in layers for average in (layer.moving_mean, layer.moving_variance)]


def update_moving_averages(
    strategy: Any, model: keras.Model, statistics: BatchStatistics, updates: tf.Tensor | None = None
) -> None:
    """Move the moving averages towards the mean over the replicas of their batch statistics.

    In cross-replica context, inside a ``tf.function``. All layers go in one packed reduction.

    Args:
        strategy, model: whose averages are moved.
        statistics: of the batch.
        updates: int scalar, the n updates made before this one, which then keeps at most (1 + n) / (10 + n),
            as in ``tf.train.ExponentialMovingAverage``: the initial values are soon forgotten, and so are the
            first steps, in which weights change fast. None: each update keeps the same fraction.
    """
    if not statistics:
        return
    averages = moving_averages(model, statistics)
    norms = norms_of(model)
    decays = [norms[name].decay for name in statistics for _ in ("mean", "variance")]
    values = [value for pair in statistics.values() for value in pair]

    def move(average, mean, decay: float):
        if updates is None:
            return average.assign_sub((1.0 - decay) * (average - mean))
        share = tf.maximum(tf.cast(1.0 - decay, mean.dtype), 9.0 / (10.0 + tf.cast(updates, mean.dtype)))
        return average.assign_sub(share * (average - mean))

    with tf.name_scope("moving_averages"):
        means = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.MEAN, list(zip(values, averages, strict=True))
        )
        for average, mean, decay in zip(averages, means, decays, strict=True):
            strategy.extended.update(average, move, args=(mean, decay), group=False)


def all_reduce_bytes(
    model: keras.Model, frozen: Frozen, num_replicas: int, compression: str = "none"
) -> float:
    """Return the bytes that each process sends, and as many that it receives, in a synchronous step.

    A ring of R replicas carries 2 (R - 1) / R times the reduced bytes over each of its links (Patarasuk and
    Yuan, "Bandwidth optimal all-reduce algorithms", 2009), and every process has one link to the next.
    Reduced are the gradients of the trained weights and the batch statistics. The reductions within
    synchronized batch normalization, and those of the metrics, are a few bytes and aren't counted.
    """
    weights = [model.trainable_variables[index].value for index in trained_indices(model, frozen)]
    held = set(map(id, frozen_norms(model, frozen)))
    norms = [name for name, layer in norms_of(model).items() if id(layer) not in held]
    gradients = [(weight, tf.bfloat16 if compression == "bfloat16" else weight.dtype) for weight in weights]
    values = [*gradients, *((average, average.dtype) for average in moving_averages(model, norms))]
    reduced = sum(value.shape.num_elements() * dtype.size for value, dtype in values)
    return 2 * (num_replicas - 1) / num_replicas * reduced


class ExchangeTimer:
    """Sums gradients as ``sum_over_replicas`` does, and takes the time.

    ``moments``, float64 [2] of the graph being traced: when this process's first replica began and ended to
    exchange gradients with other devices or processes, waiting for the slowest included, in seconds since
    1970. (Synchronized batch normalization exchanges in the middle of the network; that counts as computing.)
    """

    moments: tf.Tensor

    def sum_over_replicas(self, strategy, gradients, variables):
        def first(values):
            return [strategy.experimental_local_results(value)[0] for value in values]

        computed_at = time_after(first(gradients))
        summed = sum_over_replicas(strategy, gradients, variables)
        self.moments = tf.stack([computed_at, time_after(first(summed))])
        return summed


def time_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the time at which all ``tensors`` were there, float64 seconds."""
    with tf.control_dependencies(list(tensors)):  # which ignores what is neither tensor nor operation
        return tf.timestamp()
