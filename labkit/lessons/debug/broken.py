"""Patients 3 and 4, whose code the lesson shows and the student mends, and what trains them.

A test compares the two broken functions with the cells of the lesson, which show the same code.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.lessons.debug.digits import SIZE
from labkit.lessons.debug.patients import CLASSES, UNITS, Patient

__all__ = [
    "broken_network",
    "broken_step",
    "classifier",
    "fresh_weights",
    "mixing_weights",
    "train_accumulating",
    "train_network",
]

LEARNING_RATE, PARTS = 0.3, 4

TrainStep = Callable[[list[tf.Variable], Any, Sequence[Any], float, list[tf.Variable]], Any]


def broken_step(weights, gradients_of, parts, learning_rate, total):
    """Make one update from several parts of a batch."""
    for part in parts:
        for collected, gradient in zip(total, gradients_of(part), strict=True):
            collected.assign_add(gradient)
    for weight, collected in zip(weights, total, strict=True):
        weight.assign_sub(learning_rate * collected)


def broken_network(images, weights):
    """Return logits [n, 10] of images float32 [n, 12, 12]."""
    halves = tf.stack([images[:, :6], images[:, 6:]])
    hidden = tf.nn.relu(tf.reshape(halves, [-1, 72]) @ weights["half"])
    joined = tf.reshape(hidden, [len(images), 64])
    return joined @ weights["logits"]


def fresh_weights(seed: int = 0, dtype: Any = tf.float32) -> list[tf.Variable]:
    """Return the weights of ``classifier``, as Patient's: kernel and bias of two layers."""
    return [tf.Variable(value, dtype=dtype) for value in Patient(seed=seed).weights().values()]


def classifier(weights: Sequence[Any], images: Any) -> tf.Tensor:
    """Return logits [n, 10] of a network with one hidden layer."""
    flat = tf.reshape(images, [-1, SIZE * SIZE])
    hidden = tf.nn.relu(flat @ weights[0] + weights[1])
    return hidden @ weights[2] + weights[3]


def train_accumulating(
    train_step: TrainStep, steps: int, *, num_parts: int = PARTS, seed: int = 0
) -> NDArray[np.float64]:
    """Train ``classifier`` with ``train_step``, each batch in ``num_parts`` parts.

    Returns the loss of each batch before its update, in nats, float64 [steps].
    """
    weights = fresh_weights(seed)
    total = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function(reduce_retracing=True)
    def loss_and_gradients(images, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, classifier(weights, images))
        return loss, tape.gradient(loss, weights)

    def gradients_of(part):
        return loss_and_gradients(*part)[1]

    losses = []
    for step in range(1, steps + 1):
        images, labels = map(tf.constant, Patient(seed=seed).batch(step))
        losses.append(float(loss_and_gradients(images, labels)[0]))
        parts = list(zip(tf.split(images, num_parts), tf.split(labels, num_parts), strict=True))
        train_step(weights, gradients_of, parts, LEARNING_RATE, total)
    return np.array(losses)


def mean_loss(labels: Any, logits: Any) -> tf.Tensor:
    """Return the mean cross-entropy, in nats."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def mixing_weights(seed: int = 0) -> dict[str, tf.Variable]:
    """Return the weights of patient 4: ``half`` [72, 32] of each half, and ``logits`` [64, 10]."""
    random = np.random.default_rng(seed)
    half = random.normal(0, (2 / 72) ** 0.5, (SIZE * SIZE // 2, UNITS // 2))
    logits = random.normal(0, 0.3 / UNITS**0.5, (UNITS, CLASSES))
    return {"half": tf.Variable(half, dtype=tf.float32), "logits": tf.Variable(logits, dtype=tf.float32)}


def train_network(network: Callable[..., Any], steps: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Train ``network(images, weights)`` with the weights of patient 4, eagerly.

    Returns the loss of each step before its update, in nats, float64 [steps].

    Raises ValueError if the logits don't depend on the weights by operations of TensorFlow.
    """
    weights = mixing_weights(seed)
    losses = []
    for step in range(1, steps + 1):
        images, labels = map(tf.constant, Patient(seed=seed).batch(step))
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, network(images, weights))
        gradients = tape.gradient(loss, list(weights.values()))
        if None in gradients:
            raise ValueError("the loss has no gradient for one of the weights")
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        losses.append(float(loss))
    return np.array(losses)
