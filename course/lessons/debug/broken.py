"""Patients 3 and 4, whose code the lesson shows and the student fixes, and what trains them.

A test compares the two broken functions with the cells of the lesson, which show the same code.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from course.lessons.debug.patients import CLASSES, SIZE, UNITS, Patient

LEARNING_RATE = 0.3

MakeUpdate = Callable[[list[tf.Variable], Callable[..., Any], Callable[[int], float]], Callable[..., Any]]


def broken_update(weights, gradients_of, schedule):
    """Return a function that makes the next update, at the learning rate schedule(0), schedule(1), …"""
    step = 0

    @tf.function(autograph=False)
    def update(images, labels):
        nonlocal step
        for weight, gradient in zip(weights, gradients_of(images, labels), strict=True):
            weight.assign_sub(schedule(step) * gradient)
        step += 1

    return update


def broken_network(images, weights):
    """Return logits [n, 10] of images float32 [n, 12, 12]."""
    halves = tf.stack([images[:, :6], images[:, 6:]])
    hidden = tf.nn.relu(tf.reshape(halves, [-1, 72]) @ weights["half"])
    joined = tf.reshape(hidden, [len(images), 64])
    return joined @ weights["logits"]


def classifier(weights: Sequence[Any], images: Any) -> tf.Tensor:
    """Return logits [n, 10] of a network with one hidden layer. ``weights``: as Patient's, in its order."""
    flat = tf.reshape(images, [-1, SIZE * SIZE])
    hidden = tf.nn.relu(flat @ weights[0] + weights[1])
    return hidden @ weights[2] + weights[3]


def falling_rate(step: int) -> float:
    """Return the learning rate of patient 3: a large one, which halves every eight steps."""
    return 3.0 * 0.5 ** (step / 8)


def train_scheduled(make_update: MakeUpdate, steps: int) -> NDArray[np.float64]:
    """Train ``classifier`` with the update that ``make_update`` returns, and ``falling_rate``.

    Returns the loss of each step before its update, in nats, float64 [steps].
    """
    weights = [tf.Variable(value, dtype=tf.float32) for value in Patient().weights().values()]

    def gradients_of(images, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, classifier(weights, images))
        return tape.gradient(loss, weights)

    update, losses = make_update(weights, gradients_of, falling_rate), []
    for step in range(1, steps + 1):
        images, labels = map(tf.constant, Patient().batch(step))
        losses.append(float(mean_loss(labels, classifier(weights, images))))
        update(images, labels)
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


def train_network(network: Callable[..., Any], steps: int) -> NDArray[np.float64]:
    """Train ``network(images, weights)`` with the weights of patient 4, eagerly.

    Returns the loss of each step before its update, in nats, float64 [steps].

    Raises ValueError if the logits don't depend on the weights by operations of TensorFlow.
    """
    weights, losses = mixing_weights(), []
    for step in range(1, steps + 1):
        images, labels = map(tf.constant, Patient().batch(step))
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, network(images, weights))
        gradients = tape.gradient(loss, list(weights.values()))
        if None in gradients:
            raise ValueError("the loss has no gradient for one of the weights")
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        losses.append(float(loss))
    return np.array(losses)
