"""The loss around trained weights, in a random plane (Li et al., 2018, arXiv:1712.09913)."""

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


@dataclass(frozen=True)
class Surface:
    """Losses in a plane around trained weights.

    ``name``: of the network. ``offsets``: float64 [points], along both directions, in units of the filters'
    norms. ``losses``: float64 [points, points] in nats; the middle is the trained network.
    """

    name: str
    offsets: NDArray[np.float64]
    losses: NDArray[np.float64]

    @property
    def center(self) -> float:
        """The loss of the trained network."""
        middle = len(self.offsets) // 2
        return float(self.losses[middle, middle])


def filter_normalized(weights: Sequence[NDArray[np.float32]], seed: int) -> list[NDArray[np.float32]]:
    """Return a random direction whose filters have the norms of the filters of ``weights``.

    Without this, a network with small weights would look rough and one with large weights smooth, although
    batch normalization cancels the size of a kernel. Weights with one axis (gamma, beta, biases) stay as
    they are, as in the paper.

    Args:
        weights: kernels [..., outputs], or vectors.
        seed: of the direction.
    """
    random = np.random.default_rng(seed)
    direction = []
    for weight in weights:
        drawn = random.normal(size=weight.shape)
        if weight.ndim == 1:
            drawn[:] = 0
        else:
            axes = tuple(range(weight.ndim - 1))
            norms = np.sqrt((weight.astype(np.float64) ** 2).sum(axis=axes))
            drawn *= norms / np.sqrt((drawn**2).sum(axis=axes))
        direction.append(drawn.astype(np.float32))
    return direction


def loss_surface(
    model: keras.Model,
    images: NDArray[np.float32],
    labels: NDArray[np.int32],
    *,
    radius: float = 1.0,
    points: int = 9,
    seed: int = 0,
) -> Surface:
    """Return the loss of a subset in a plane around the weights of ``model``, which aren't changed.

    Batch normalization uses the statistics of the subset, as in training.

    Args:
        model: maps images to logits.
        images, labels: the subset, float32 [n, height, width, channels] and int [n].
        radius: how far the plane reaches in each direction, in units of the filters' norms.
        points: in each direction; odd, so that the trained weights are one of them.
        seed: of the two directions.
    """
    variables = [weight.value for weight in model.trainable_variables]
    trained = [variable.numpy() for variable in variables]
    across, along = (filter_normalized(trained, seed * 2 + number) for number in (0, 1))

    @tf.function(autograph=False)
    def loss_at(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        for variable, start, first, second in zip(variables, trained, across, along, strict=True):
            variable.assign(start + x * first + y * second)
        logits = model(images, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    offsets = np.linspace(-radius, radius, points)
    grid = [
        [float(loss_at(tf.constant(x, tf.float32), tf.constant(y, tf.float32))) for x in offsets]
        for y in offsets
    ]
    for variable, start in zip(variables, trained, strict=True):
        variable.assign(start)
    return Surface(model.name, offsets, np.array(grid))
