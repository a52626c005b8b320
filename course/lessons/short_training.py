"""Short trainings on one device, with labkit's own step, as several lessons do many of them."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.config import OptimizerConfig
from labkit.optim.optimizer import Optimizer
from labkit.optim.schedules import learning_rate_at
from labkit.training.step import make_train_step

Step = Callable[[Any, Any, float], tf.Tensor]


def one_device_step(model: keras.Model, optimizer: Optimizer, batch_size: int, **options: Any) -> Step:
    """Return ``step(images, labels, learning_rate)``, compiled. It returns the metrics, the loss first.

    ``options``: further arguments of ``make_train_step``.
    """
    strategy, count = tf.distribute.get_strategy(), tf.Variable(0, dtype=tf.int64, trainable=False)
    compiled = tf.function(
        make_train_step(strategy, model, optimizer, count, global_batch_size=batch_size, **options),
        autograph=False,
    )
    return lambda images, labels, learning_rate: compiled(
        tf.convert_to_tensor(images),
        tf.convert_to_tensor(labels),
        tf.constant(learning_rate, tf.float32),
        tf.constant(0.0),
    )


def train_steps(
    step: Step,
    batches: Iterable[tuple[Any, Any]],
    config: OptimizerConfig,
    *,
    steps: int,
    steps_per_epoch: float,
) -> NDArray[np.float64]:
    """Train on a batch, images and labels, in each step. Returns the losses before each update, [steps].

    The learning rate follows the schedule of ``config``; ``step`` is one of ``one_device_step``.
    """
    losses = []
    for number, (images, labels) in zip(range(steps), batches, strict=False):
        rate = learning_rate_at(number, config, total_steps=steps, steps_per_epoch=steps_per_epoch)
        losses.append(step(images, labels, rate)[0])
    return np.array(losses, np.float64)


def restart(model: keras.Model, optimizer: Optimizer, weights: Iterable[Any]) -> None:
    """Set all weights of ``model``, given in its order, and clear what the optimizer remembers."""
    for weight, value in zip(model.weights, weights, strict=True):
        weight.assign(value)
    for variable in optimizer.state:
        variable.assign(tf.zeros_like(variable))
