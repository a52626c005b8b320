"""Losses, each with its targets, its metrics, and its function from logits to probabilities."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from labkit.config.data_sets import Targets
from labkit.training import scores


def softmax_cross_entropy(targets: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Return the cross-entropy of each example, in nats, [batch] of the logits' dtype.

    Args:
        targets: labels, int [batch]; or class probabilities, float [batch, num_classes], whose rows sum to 1
            (one-hot or soft).
        logits: float [batch, num_classes].
        label_smoothing: probability mass spread evenly over all classes (Szegedy et al., 2016, section 7).

    Raises ValueError if targets and logits don't match in shape or dtype.
    """
    targets, logits = tf.convert_to_tensor(targets), tf.convert_to_tensor(logits)
    labels = targets.dtype.is_integer and targets.shape.rank == 1
    soft = targets.dtype.is_floating and targets.shape.rank == 2
    allowed = "int [batch] or float [batch, num_classes]"
    _check_fit("softmax_cross_entropy", labels or soft, allowed, targets, logits)
    if labels:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), logits)
    else:
        losses = tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, logits.dtype), logits)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return losses


def sigmoid_cross_entropy(targets: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Return the binary cross-entropy of each example, in nats, [batch] of the logits' dtype.

    It is summed over the classes: the negative log-likelihood of all labels of an image. The gradient with
    respect to a logit is then p - t, as with softmax, so the same learning rates work. (Keras's
    ``BinaryCrossentropy`` and PyTorch's ``BCEWithLogitsLoss`` take the mean and need larger ones.)

    Args:
        targets: whether the image has each class, [batch, num_classes]: zeros and ones of any dtype, or
            probabilities.
        logits: float [batch, num_classes].
        label_smoothing: moves each target towards one half: t becomes (1 - smoothing) t + smoothing / 2.

    Raises ValueError if targets and logits don't match in shape or dtype.
    """
    targets, logits = tf.convert_to_tensor(targets), tf.convert_to_tensor(logits)
    _check_fit("sigmoid_cross_entropy", targets.shape.rank == 2, "[batch, num_classes]", targets, logits)
    targets = tf.cast(targets, logits.dtype)
    if label_smoothing:
        targets = (1.0 - label_smoothing) * targets + label_smoothing / 2
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits), axis=-1)


def _check_fit(name: str, fits: bool, allowed: str, targets: tf.Tensor, logits: tf.Tensor) -> None:
    """Raise ValueError unless ``fits``, logits are float [batch, num_classes], and the shapes match."""
    fits = fits and logits.dtype.is_floating and logits.shape.rank == 2
    if not (fits and targets.shape.is_compatible_with(logits.shape[: targets.shape.rank])):
        given = (f"{what.dtype.name} {list(what.shape)}" for what in (targets, logits))
        raise ValueError(
            "{}: targets are {}, logits {}; allowed: targets {}, logits float [batch, num_classes]".format(
                name, *given, allowed
            )
        )


def _top1(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    if targets.shape.rank == 2:
        targets = tf.argmax(targets, axis=-1, output_type=tf.int32)
    return tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.cast(targets, tf.int32))


def _labels_right(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return which labels are predicted correctly, bool [batch, num_classes]; a logit of 0 means one half."""
    return tf.equal(logits > 0, tf.cast(targets, logits.dtype) > 0.5)


@dataclass(frozen=True)
class Loss:
    """A loss with its metrics and predictions.

    Where labels are numbers, the network gives them in standard units, as it takes images: over the training
    split their mean is 0 and their standard deviation 1. ``probabilities`` are the numbers in their own unit.

    Args:
        name: Keras's name of the function from logits to probabilities.
        targets: as of ``Manifest.targets``: of shape [batch] for a ``class``, [batch, num_classes] for
            several ``classes`` and for ``numbers``.
        per_example: (targets, logits, label_smoothing) to the loss of each example, [batch].
        step_metrics: the metrics of a training step, by name: (targets, logits) to the value of each example,
            [batch]. The first is the result: ``accuracy``, or ``mean_absolute_error`` of numbers.
        scores: (labels [n] or [n, num_classes], logits [n, num_classes]), NumPy arrays, to the metrics of a
            split: ``loss`` without label smoothing and class weights, the result, and others.
        probabilities: logits to probabilities float64, NumPy arrays [n, num_classes].
        predictions: logits to predictions, NumPy arrays: classes int [n], bool [n, num_classes], or numbers.
        chance: the number of classes to the loss of an untrained model; NaN for one that isn't known.
        class_weights: float [num_classes]: what an image of each class counts in training; None: the same.
        best_by: which of ``scores`` decides between checkpoints; None: ``selection_metric``'s own choice.
    """

    name: str
    targets: Targets
    per_example: Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor]
    step_metrics: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]]
    probabilities: Callable[[np.ndarray], np.ndarray]
    predictions: Callable[[np.ndarray], np.ndarray]
    chance: Callable[[int], float]
    class_weights: tuple[float, ...] | None = None
    best_by: str | None = None

    def of_training(self, targets: tf.Tensor, logits: tf.Tensor, label_smoothing: float) -> tf.Tensor:
        """Return what each example adds to the training loss, [batch]: the loss, weighted by its classes.

        An example with several labels has the mean weight of those that it has; one without any has 1.
        """
        losses = self.per_example(targets, logits, label_smoothing)
        if self.class_weights is None:
            return losses
        weights = tf.constant(self.class_weights, losses.dtype)
        if targets.shape.rank == 1:
            return losses * tf.gather(weights, tf.cast(targets, tf.int32))
        shares = tf.cast(targets, losses.dtype)
        total = tf.reduce_sum(shares, axis=-1)
        return losses * tf.where(total > 0, tf.linalg.matvec(shares, weights) / tf.maximum(total, 1e-9), 1.0)

    def step_metrics_of(
        self, targets: tf.Tensor, logits: tf.Tensor, label_smoothing: float, global_batch_size: int
    ) -> list[tf.Tensor]:
        """Return a replica's share of the mean loss and ``step_metrics`` of the global batch."""
        with tf.name_scope("loss"):
            losses = self.of_training(targets, logits, label_smoothing)
            # The loss is scaled only here. Dividing by the global batch size makes the sum over replicas the
            # mean over the global batch, however it is split.
            mean_loss = tf.reduce_sum(losses) / global_batch_size
        with tf.name_scope("metrics"):
            hits = [metric(targets, logits) for metric in self.step_metrics.values()]
            sums = [tf.reduce_sum(tf.cast(values, mean_loss.dtype)) for values in hits]
            return [mean_loss, *(total / global_batch_size for total in sums)]

    def named(self, values: Iterable[float]) -> dict[str, float]:
        """Return ``values``, the loss and the step metrics in order, by their keys in a metrics row."""
        return dict(zip(("loss", *self.step_metrics), values, strict=True))


SOFTMAX = Loss(
    name="softmax",
    targets="class",
    per_example=softmax_cross_entropy,
    step_metrics={"accuracy": _top1},
    scores=scores.single_label_scores,
    probabilities=scores.softmax,
    predictions=lambda logits: logits.argmax(axis=1),
    chance=math.log,
)
SIGMOID = Loss(
    name="sigmoid",
    targets="classes",
    per_example=sigmoid_cross_entropy,
    step_metrics={
        "accuracy": lambda targets, logits: tf.reduce_all(_labels_right(targets, logits), axis=-1),
        "binary_accuracy": lambda targets, logits: tf.reduce_mean(
            tf.cast(_labels_right(targets, logits), logits.dtype), axis=-1
        ),
    },
    scores=scores.multi_label_scores,
    probabilities=scores.sigmoid,
    predictions=lambda logits: logits > 0,
    chance=lambda num_classes: num_classes * math.log(2),
)


def of_numbers(mean: Sequence[float], std: Sequence[float]) -> Loss:
    """Return the mean squared error in standard units: always to predict the mean gives about 1.

    Args:
        mean, std: of each number over the training split.
    """
    means, stds = (np.array(values, np.float32) for values in (mean, std))

    def error(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return outputs - in_standard_units(targets, means, stds, outputs.dtype)

    def squared(targets: tf.Tensor, outputs: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
        return tf.reduce_mean(error(targets, outputs) ** 2, axis=-1)

    def absolute(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.abs(error(targets, outputs)) * tf.cast(stds, outputs.dtype), axis=-1)

    def numbers(outputs: np.ndarray) -> np.ndarray:
        return outputs * stds.astype(np.float64) + means

    return Loss(
        name="linear",
        targets="numbers",
        per_example=squared,
        step_metrics={"mean_absolute_error": absolute},
        scores=lambda labels, outputs: scores.scores_of_numbers(labels, numbers(outputs), stds),
        probabilities=numbers,
        predictions=numbers,
        chance=lambda num_classes: 1.0,
    )


def in_standard_units(targets: tf.Tensor, mean: np.ndarray, std: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    """Return numbers float32 [batch, k] minus ``mean`` [k], divided by ``std`` [k]."""
    return (tf.cast(targets, dtype) - tf.cast(mean, dtype)) / tf.cast(std, dtype)


LOSSES = {loss.name: loss for loss in (SOFTMAX, SIGMOID)}
