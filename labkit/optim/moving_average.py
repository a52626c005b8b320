"""Moving averages of the weights, which are evaluated instead of them."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["MovingAverage"]


class MovingAverage:
    """Keeps the weights of a second network at the moving average of the first one's.

    After the update of step n (from 1), each weight a of ``averaged`` moves towards the weight w of ``model``
    by a = a - (1 - d) (a - w), where d = min(decay, (1 + n) / (10 + n)), as ``ExponentialMovingAverage`` of
    TensorFlow 1 does with ``num_updates``. The average of the first steps is therefore not dominated by the
    initial weights (averaging: Polyak & Juditsky, 1992). Moving mean and variance of batch normalization are
    averaged like weights, as in TensorFlow's EfficientNet (2019): they then belong to the averaged kernels.

    Args:
        model: the network that is trained.
        averaged: another network of the same configuration, with variables under the same strategy.
        decay: from 0 and below 1.
    """

    def __init__(self, model: keras.Model, averaged: keras.Model, decay: float) -> None:
        self.averaged = averaged
        self._decay = decay
        self._pairs = [
            (average.value, weight.value)
            for average, weight in zip(averaged.weights, model.weights, strict=True)
        ]

    def begin(self) -> None:
        """Set the averages to the weights as they are."""
        for average, weight in self._pairs:
            average.assign(tf.convert_to_tensor(weight))

    def update(self, strategy: Any, step: tf.Tensor) -> None:
        """Move the averages, in cross-replica context, inside a ``tf.function``.

        Args:
            strategy: owns the variables.
            step: steps completed before this one, an integer scalar.
        """
        number = tf.cast(step, tf.float32) + 1.0
        share = 1.0 - tf.minimum(self._decay, (1.0 + number) / (10.0 + number))

        def move(average, weight, share):
            return average.assign_sub(tf.cast(share, average.dtype) * (average - weight))

        with tf.name_scope("average_of_weights"):
            for average, weight in self._pairs:
                strategy.extended.update(average, move, args=(weight, share), group=False)
