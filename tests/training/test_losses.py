"""The losses against Keras and against formulas in NumPy; what doesn't fit is refused with its shapes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.training.losses import LOSSES, sigmoid_cross_entropy, softmax_cross_entropy

BATCH, CLASSES = 32, 10
_GENERATOR = np.random.default_rng(0)
LOGITS = (4 * _GENERATOR.normal(size=(BATCH, CLASSES))).astype(np.float32)
LABELS = _GENERATOR.integers(0, CLASSES, BATCH)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
MULTI_HOT = (_GENERATOR.random((BATCH, CLASSES)) < 0.2).astype(np.float32)


def softmax_by_hand(targets, logits, smoothing):
    """Cross-entropy of the smoothed targets, float64 [batch]."""
    targets = (1 - smoothing) * targets + smoothing / targets.shape[1]
    exponents = np.exp(logits.astype(np.float64))
    return -(targets * np.log(exponents / exponents.sum(axis=1, keepdims=True))).sum(axis=1)


def sigmoid_by_hand(targets, logits, smoothing):
    """Sum over the classes of the binary cross-entropy of the smoothed targets, float64 [batch]."""
    targets = targets + smoothing * (0.5 - targets)
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return -(targets * np.log(chances) + (1 - targets) * np.log(1 - chances)).sum(axis=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_losses_are_their_formula_and_keras(smoothing):
    options = {"from_logits": True, "label_smoothing": smoothing, "reduction": None}
    found = softmax_cross_entropy(LABELS, LOGITS, smoothing)
    np.testing.assert_allclose(found, softmax_by_hand(ONE_HOT, LOGITS, smoothing), rtol=2e-6, atol=1e-6)
    theirs = keras.losses.CategoricalCrossentropy(**options)
    np.testing.assert_allclose(found, theirs(ONE_HOT, LOGITS), rtol=2e-6, atol=1e-6)
    found = sigmoid_cross_entropy(MULTI_HOT, LOGITS, smoothing)
    np.testing.assert_allclose(found, sigmoid_by_hand(MULTI_HOT, LOGITS, smoothing), rtol=2e-6, atol=1e-6)
    theirs = keras.losses.BinaryCrossentropy(**options)  # the mean
    np.testing.assert_allclose(found / CLASSES, theirs(MULTI_HOT, LOGITS), rtol=2e-6, atol=1e-6)
    mixed = 0.7 * ONE_HOT + 0.3 * ONE_HOT[::-1]
    expected = softmax_by_hand(mixed, LOGITS, smoothing)
    np.testing.assert_allclose(
        softmax_cross_entropy(mixed, LOGITS, smoothing), expected, rtol=2e-6, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool, np.float64])
def test_the_gradient_of_sigmoid_is_the_error_for_zeros_and_ones_of_any_dtype(dtype):
    with tf.GradientTape() as tape:
        logits = tf.constant(LOGITS)
        tape.watch(logits)
        losses = sigmoid_cross_entropy(MULTI_HOT.astype(dtype), logits)
    error = 1 / (1 + np.exp(-LOGITS.astype(np.float64))) - MULTI_HOT
    np.testing.assert_allclose(tape.gradient(losses, logits), error, atol=1e-6)
    np.testing.assert_array_equal(losses, sigmoid_cross_entropy(MULTI_HOT, LOGITS))
    assert sigmoid_cross_entropy(MULTI_HOT.astype(dtype), LOGITS.astype(np.float64)).dtype == tf.float64
    large = np.array([[1e4, -1e4], [1e4, -1e4]], np.float32)
    np.testing.assert_allclose(sigmoid_cross_entropy(np.array([[1, 0], [0, 1]]), large), [0, 2e4])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_one_hot_targets_are_labels(smoothing):
    found = []
    for targets in (LABELS, LABELS.astype(np.uint8), ONE_HOT):
        with tf.GradientTape() as tape:
            logits = tf.constant(LOGITS)
            tape.watch(logits)
            losses = softmax_cross_entropy(targets, logits, smoothing)
        found.append((losses, tape.gradient(losses, logits)))
    for losses, gradient in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-6)
        np.testing.assert_allclose(gradient, found[0][1], atol=1e-6)


@pytest.mark.parametrize(
    ("function", "targets", "logits", "words"),
    [
        # What a data set of several labels gives, under the loss for one.
        (softmax_cross_entropy, MULTI_HOT.astype(np.int32), LOGITS, ["int32 [32, 10]", "[32, 10]"]),
        (softmax_cross_entropy, LABELS.astype(np.float32), LOGITS, ["float32 [32]"]),
        (softmax_cross_entropy, LABELS[:-1], LOGITS, ["int64 [31]", "[32, 10]"]),
        (softmax_cross_entropy, ONE_HOT[:, :9], LOGITS, ["float32 [32, 9]", "[32, 10]"]),
        (softmax_cross_entropy, LABELS, LOGITS[0], ["logits float32 [10]"]),
        # And what one of one label gives, under the loss for several.
        (sigmoid_cross_entropy, LABELS, LOGITS, ["int64 [32]", "[batch, num_classes]"]),
        (sigmoid_cross_entropy, MULTI_HOT[:, :9], LOGITS, ["float32 [32, 9]", "[32, 10]"]),
        (sigmoid_cross_entropy, MULTI_HOT[:1], LOGITS, ["float32 [1, 10]", "[32, 10]"]),
        (sigmoid_cross_entropy, MULTI_HOT, LOGITS.astype(np.int32), ["logits int32 [32, 10]"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_shapes(function, targets, logits, words):
    with pytest.raises(ValueError, match=function.__name__) as error:
        function(targets, logits)
    for word in words:
        assert word in str(error.value)
    with pytest.raises(ValueError, match=function.__name__):  # when a step is traced, before it runs
        tf.function(function)(tf.constant(targets), tf.constant(logits))


@pytest.mark.parametrize(
    ("name", "targets"), [("softmax", LABELS), ("softmax", ONE_HOT), ("sigmoid", MULTI_HOT)]
)
def test_a_step_tells_what_an_evaluation_would(name, targets):
    """Figures of one batch, in a step, are those of a split of the same examples."""
    loss = LOSSES[name]
    batch = tf.constant(targets), tf.constant(LOGITS)
    values = [loss.per_example(*batch, 0.0), *(figure(*batch) for figure in loss.step_metrics.values())]
    told = loss.named(float(tf.reduce_mean(tf.cast(value, tf.float32))) for value in values)
    labels = LABELS if name == "softmax" else MULTI_HOT.astype(np.int32)
    found = loss.scores(labels, LOGITS)
    assert told.keys() <= found.keys() and list(told)[:2] == ["loss", "accuracy"]
    assert told == pytest.approx({key: found[key] for key in told}, rel=1e-5)


def test_the_exact_match_is_the_share_of_images_with_every_label_right():
    targets = np.array([[1, 0, 1], [1, 0, 1], [0, 0, 0]])
    logits = np.array([[1, -1, 1], [1, -1, -1], [-1, -1, -1]], np.float32)
    figures = LOSSES["sigmoid"].step_metrics
    assert figures["accuracy"](targets, logits).numpy().tolist() == [True, False, True]
    np.testing.assert_allclose(figures["binary_accuracy"](targets, logits), [1, 2 / 3, 1])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
def test_probabilities_are_what_keras_calls_by_that_name(loss):
    theirs = keras.activations.get(loss.name)(tf.constant(LOGITS))
    np.testing.assert_allclose(loss.probabilities(LOGITS), theirs, rtol=1e-5, atol=1e-9)
    chance = float(
        loss.scores(MULTI_HOT.astype(int) if loss.targets == "classes" else LABELS, 0 * LOGITS)["loss"]
    )
    assert loss.chance(CLASSES) == pytest.approx(chance)
