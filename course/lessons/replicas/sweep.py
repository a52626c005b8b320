"""Many trainings of a small dense network at once, each with another learning rate.

A dense network of one hidden layer trains in milliseconds on images that are averaged to 8×8 pixels. Its
weights have a leading axis, one entry for each learning rate, so that one call trains them all.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

HIDDEN = 32
Weights = list[Any]  # kernels and biases of both layers, float32 tensors [variants, …]


@dataclass(frozen=True)
class DenseNetwork:
    """A dense network that trains on ``images`` float32 [n, features] with ``labels`` int32 [n].

    Args:
        optimizer: ``sgd`` without momentum, or ``adam`` (Kingma and Ba, 2015).
        normalized: whether batch normalization follows the first layer.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    optimizer: str = "sgd"
    normalized: bool = False

    def train(
        self, rates: Sequence[float], steps: int, batch: int, *, scale: float = 1.0, every: int = 1
    ) -> NDArray[np.float64]:
        """Train once for each rate, from the same weights and on the same batches.

        Args:
            rates: learning rates.
            steps: of each training.
            batch: images of a step, drawn at random.
            scale: factor of the loss, and so of the gradients; the losses returned don't have it.
            every: steps between two measurements.

        Returns the losses of 1,000 fixed images every ``every`` steps, float64 [rates, 1 + steps / every], in
        nats; the first is that of the initial weights. Infinite where a training diverged.
        """
        state = self._begin(len(rates))
        losses = [self._evaluate(state)]
        for start in range(0, steps, every):
            state = self._run(state, rates, batch, scale, start, every)
            losses.append(self._evaluate(state))
        found = np.array(losses, np.float64).T
        return np.where(np.isfinite(found), found, np.inf)

    def steps_to(self, target: float, batches: Sequence[int], rates: Sequence[float]) -> NDArray[np.float64]:
        """Return the steps to a loss with the best learning rate of each batch size, float64 [batches].

        Infinite where no rate reaches ``target``, in nats, within 10,000 images and 60 steps.
        """
        found = []
        for batch in batches:
            most = 60 + 10000 // batch
            every = max(1, most // 60)
            reached = self.train(rates, most, batch, every=every) < target
            first = np.where(reached.any(1), reached.argmax(1) * every, np.inf)
            found.append(float(first.min()))
        return np.array(found)

    def gradients(self, weights: Weights, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the gradients of the mean losses of several batches, float64 [batches, weights].

        Args:
            weights: of one variant.
            index: the images of each batch, [batches, size].
        """
        copies = [tf.repeat(weight, len(index), 0) for weight in weights]
        with tf.GradientTape() as tape:
            tape.watch(copies)
            losses = _losses(copies, self.images[index], self.labels[index], self.normalized)
        parts = tape.gradient(losses, copies)
        return np.concatenate([part.numpy().reshape(len(index), -1) for part in parts], 1).astype(np.float64)

    def weights_after(self, rate: float, steps: int, batch: int) -> Weights:
        """Return the weights after ``steps`` steps at one learning rate."""
        return self._run(self._begin(1), [rate], batch, 1.0, 0, steps)[0]

    def _run(
        self, state: Any, rates: Sequence[float], batch: int, scale: float, start: int, count: int
    ) -> Any:
        some_steps = _compiled(self.optimizer, self.normalized)
        numbers = (tf.constant(value, tf.int32) for value in (batch, start, count))
        rate, factor = tf.constant(rates, tf.float32), tf.constant(scale, tf.float32)
        return some_steps(state, self._data, rate, factor, *numbers)

    @functools.cached_property
    def _data(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(self.images), tf.constant(self.labels)

    def _begin(self, variants: int) -> tuple[Weights, Weights, Weights]:
        """Return the initial weights, and the means and squares of Adam, each once for each variant."""
        random = np.random.default_rng(0)
        features, classes = self.images.shape[1], int(self.labels.max()) + 1
        weights = []
        for shape in ((features, HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes)):
            deviation = (2 / shape[0]) ** 0.5 if shape[0] > 1 else 0.0
            value = random.normal(0, deviation, shape)
            weights.append(tf.constant(np.repeat(value[None], variants, 0), tf.float32))
        zeros = [tf.zeros_like(weight) for weight in weights]
        return weights, zeros, zeros

    def _evaluate(self, state: Any) -> NDArray[np.float32]:
        fixed = np.random.default_rng(0).permutation(len(self.images))[:1000]
        return _losses(state[0], self.images[fixed], self.labels[fixed], self.normalized).numpy()


def sweep_rates(
    images: NDArray[np.float32], labels: NDArray[np.int32], *, scale: float
) -> tuple[dict[str, NDArray[np.float64]], ...]:
    """Train with 13 learning rates, with the loss and with ``scale`` times the loss.

    Returns three mappings, each by ``SGD``, ``SGD, normalized`` and ``Adam``: the rates, the final losses of
    the right loss, and those of the scaled one; float64 [13].
    """
    steps, rates = 150, {}
    right, wrong = {}, {}
    for name, optimizer, normalized, highest in (
        ("SGD", "sgd", False, 8.0),
        ("SGD, normalized", "sgd", True, 8.0),
        ("Adam", "adam", False, 0.25),
    ):
        network = DenseNetwork(images, labels, optimizer, normalized)
        tried = [highest / 2**halvings for halvings in range(12, -1, -1)]
        rates[name] = np.array(tried)
        right[name] = network.train(tried, steps, 64, every=steps)[:, -1]
        wrong[name] = network.train(tried, steps, 64, scale=scale, every=steps)[:, -1]
    return rates, right, wrong


def _losses(weights: Weights, images: Any, labels: Any, normalized: bool) -> Any:
    """Return the mean cross-entropy of each variant, [variants].

    Images are [batch, features] for all variants, or [variants, batch, features].
    """
    kernel, bias, last, offset = weights
    values = tf.matmul(images, kernel)
    if normalized:
        mean, variance = tf.nn.moments(values, 1, keepdims=True)
        values = (values - mean) * tf.math.rsqrt(variance + 1e-5)
    logits = tf.matmul(tf.nn.relu(values + bias), last) + offset
    wanted = tf.broadcast_to(labels, tf.shape(logits)[:2])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
    return tf.reduce_mean(losses, 1)


@functools.cache
def _compiled(optimizer: str, normalized: bool) -> Any:
    """Return the compiled function that makes some steps of all variants."""

    @tf.function(reduce_retracing=True)
    def some_steps(state, data, rates, scale, batch, start, count):
        for number in tf.range(start, start + count):
            state = step(state, data, rates[:, None, None], scale, batch, number)
        return state

    def step(state, data, rate, scale, batch, number):
        weights, means, squares = state
        images, labels = data
        index = tf.random.stateless_uniform([batch], [0, number], 0, tf.shape(images)[0], tf.int32)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = _losses(weights, tf.gather(images, index), tf.gather(labels, index), normalized)
            loss = scale * tf.reduce_sum(losses)
        gradients = tape.gradient(loss, weights)
        if optimizer == "sgd":
            return [w - rate * g for w, g in zip(weights, gradients, strict=True)], means, squares
        means = [0.9 * m + 0.1 * g for m, g in zip(means, gradients, strict=True)]
        squares = [0.999 * s + 0.001 * g * g for s, g in zip(squares, gradients, strict=True)]
        done = tf.cast(number + 1, tf.float32)
        bias = tf.sqrt(1 - 0.999**done) / (1 - 0.9**done)
        moved = zip(weights, means, squares, strict=True)
        return [w - rate * bias * m / (tf.sqrt(s) + 1e-8) for w, m, s in moved], means, squares

    return some_steps
