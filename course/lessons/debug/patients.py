"""Five broken trainings to diagnose, and a sound one: a small network on drawn digits.

The network has one hidden layer and is written in NumPy, so that a training takes a fraction of a second.
What is wrong with each patient can be found by measurements alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.training.scores import softmax

BATCH, CLASSES, UNITS = 64, 10, 64
LEARNING_RATE = 0.3
# What may be wrong with a patient whose code isn't shown. "": nothing.
FAULTS = ("", "labels", "input", "dead", "rate", "softmax")

Array = NDArray[np.float64]


class Patient:
    """A training whose code isn't shown. It can only be measured.

    Args:
        fault: one of ``FAULTS``.
        seed: decides the initial weights and the batches.
        learning_rate: of plain gradient descent.
    """

    def __init__(self, fault: str = "", *, seed: int = 0, learning_rate: float = LEARNING_RATE) -> None:
        self._fault, self._seed = fault, seed
        self._rate = learning_rate * (1e-6 if fault == "rate" else 1)
        random = np.random.default_rng(seed)
        inputs = SIZE * SIZE
        self._weights: dict[str, Array] = {
            "hidden/kernel": random.normal(0, (2 / inputs) ** 0.5, (inputs, UNITS)),
            "hidden/bias": np.full(UNITS, -100.0 if fault == "dead" else 0.0),
            "logits/kernel": random.normal(0, 0.3 / UNITS**0.5, (UNITS, CLASSES)),
            "logits/bias": np.zeros(CLASSES),
        }

    def batch(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return images float32 [64, 12, 12], as the network gets them, and labels int64 [64] of a step."""
        images, labels = digits(BATCH, seed=1_000_000 * (self._seed + 1) + step)
        if self._fault == "labels":
            labels = np.random.default_rng(step).permutation(labels)
        scale = 255**2 if self._fault == "input" else 1
        return images / np.float32(scale), labels

    def weights(self) -> dict[str, Array]:
        """Return a copy of each weight by its name."""
        return {name: value.copy() for name, value in self._weights.items()}

    def outputs(self, images: NDArray[np.floating]) -> Array:
        """Return what the network gives to the loss, float64 [n, 10]."""
        return self._forward(images)[1]

    def loss(self, images: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
        """Return the mean loss of a batch, in nats. Nothing is updated."""
        return _cross_entropy(self.outputs(images), labels)[0]

    def step(self, images: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
        """Make one update with a batch. Returns its mean loss before the update, in nats."""
        hidden, outputs = self._forward(images)
        loss, gradient = _cross_entropy(outputs, labels)
        if self._fault == "softmax":  # through the softmax that the network ends with
            gradient = outputs * (gradient - (gradient * outputs).sum(axis=-1, keepdims=True))
        at_hidden = gradient @ self._weights["logits/kernel"].T * (hidden > 0)
        flat = np.asarray(images, np.float64).reshape(len(images), -1)
        gradients = {
            "hidden/kernel": flat.T @ at_hidden,
            "hidden/bias": at_hidden.sum(axis=0),
            "logits/kernel": hidden.T @ gradient,
            "logits/bias": gradient.sum(axis=0),
        }
        for name, value in gradients.items():
            self._weights[name] -= self._rate * value
        return loss

    def train(self, steps: int, *, start: int = 0) -> Array:
        """Make ``steps`` updates, each with a new batch. Returns the loss of each, float64 [steps]."""
        return np.array([self.step(*self.batch(start + number)) for number in range(1, steps + 1)])

    def accuracy(self, images: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
        """Return the fraction of images whose largest output is at their label."""
        return float(np.mean(self.outputs(images).argmax(axis=-1) == labels))

    def _forward(self, images: NDArray[np.floating]) -> tuple[Array, Array]:
        flat = np.asarray(images, np.float64).reshape(len(images), -1)
        hidden = np.maximum(flat @ self._weights["hidden/kernel"] + self._weights["hidden/bias"], 0)
        outputs = hidden @ self._weights["logits/kernel"] + self._weights["logits/bias"]
        return hidden, softmax(outputs) if self._fault == "softmax" else outputs

    def __repr__(self) -> str:
        return f"<patient: {len(self._weights)} weights, batches of {BATCH} digits, {CLASSES} classes>"


def _cross_entropy(outputs: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Return the mean cross-entropy of the softmax of ``outputs``, and its gradient, [n, classes]."""
    probabilities = softmax(outputs)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(probabilities[rows, labels], 1e-300)).mean()
    gradient = probabilities.copy()
    gradient[rows, labels] -= 1
    return float(loss), gradient / len(labels)


class SplitDigits(NamedTuple):
    """Images float32 [n, 12, 12] and labels int64 [n] of a training and a validation split.

    ``is_copy``: bool [n], the validation images that are noisy copies of a training image.
    """

    train: tuple[NDArray[np.float32], NDArray[np.int64]]
    validation: tuple[NDArray[np.float32], NDArray[np.int64]]
    is_copy: NDArray[np.bool_]


def leaky_split(count: int, copied: float, *, seed: int, noise: float = 0.02) -> SplitDigits:
    """Draw two splits of ``count`` digits each, with strong noise.

    Args:
        copied: fraction of the validation images that are copies of a training image.
        noise: standard deviation of the difference between a pixel of a copy and of its original.
    """
    random = np.random.default_rng(seed)
    images, labels = digits(2 * count, seed=seed, noise=0.4)
    is_copy = random.random(count) < copied
    chosen = random.integers(count, size=int(is_copy.sum()))
    images[count:][is_copy] = images[chosen] + random.normal(0, noise, (len(chosen), SIZE, SIZE))
    labels[count:][is_copy] = labels[chosen]
    return SplitDigits((images[:count], labels[:count]), (images[count:], labels[count:]), is_copy)


def train_on(split: SplitDigits, steps: int, every: int = 10) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """Train the sound network on a split, and measure its accuracy.

    Returns the steps of the measurements, and the accuracy at each by ``train``, ``validation`` and ``new``:
    2,000 images that were drawn afterwards.
    """
    network, random = Patient(), np.random.default_rng(0)
    parts = {"train": split.train, "validation": split.validation, "new": digits(2000, seed=99, noise=0.4)}
    accuracy: dict[str, list[float]] = {name: [] for name in parts}
    for step in range(steps + 1):
        if step % every == 0:
            for name, part in parts.items():
                accuracy[name].append(network.accuracy(*part))
        chosen = random.integers(len(split.train[0]), size=BATCH)
        network.step(split.train[0][chosen], split.train[1][chosen])
    measured = {name: np.array(values) for name, values in accuracy.items()}
    return np.arange(0, steps + 1, every), measured


SIZE = 12  # pixels, height and width
FONT_HEIGHT, FONT_WIDTH = 7, 5
FONT = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def digits(
    count: int, *, seed: int = 0, noise: float = 0.15
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw ``count`` digits, each at one of four places, with its own brightness and noise.

    Args:
        seed: the same seed gives the same images.
        noise: standard deviation of the noise of a pixel; the strokes are 0.6 to 1.

    Returns images float32 [count, 12, 12], standardized (mean 0, standard deviation 1 over all pixels), and
    labels int64 [count].
    """
    random = np.random.default_rng(seed)
    labels = random.integers(len(FONT), size=count)
    glyphs = np.array([[[int(c) for c in row] for row in digit.split()] for digit in FONT], np.float32)
    images = np.zeros((count, SIZE, SIZE), np.float32)
    tops, lefts = random.integers(2, 4, size=count), random.integers(3, 5, size=count)
    strokes = glyphs[labels] * random.uniform(0.6, 1, size=(count, 1, 1))
    for image, stroke, top, left in zip(images, strokes, tops, lefts, strict=True):
        image[top : top + FONT_HEIGHT, left : left + FONT_WIDTH] = stroke
    images += random.normal(0, noise, images.shape)
    return ((images - images.mean()) / images.std()).astype(np.float32), labels
