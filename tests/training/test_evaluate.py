"""Evaluation figures against NumPy; every example once, for any batch size."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.training.evaluate import Evaluation, evaluate_split
from labkit.training.scores import class_metrics

LOGITS = np.array([[2, 1, 0, -1, -2, -3, -4], [0, 0, 0, 0, 0, 0, 9], [5, 4, 3, 2, 1, 0, -1.0]], np.float32)
LABELS = np.array([0, 2, 5], np.int32)


def test_figures_by_hand():
    evaluation = Evaluation("test", LOGITS, LABELS, np.arange(3), 1.0)
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(evaluation.probabilities, chances, rtol=1e-6)
    assert evaluation.loss == pytest.approx(-np.log(chances[[0, 1, 2], LABELS]).mean(), rel=1e-6)
    assert evaluation.accuracy == pytest.approx(1 / 3)
    # Label 2 ties with five others for second place and the lower classes go first; label 5 is sixth.
    assert evaluation.metrics["top5_accuracy"] == pytest.approx(2 / 3)
    confusion = evaluation.confusion()
    assert confusion.sum() == 3 and confusion[0, 0] == confusion[2, 6] == confusion[5, 0] == 1
    rows = class_metrics(evaluation.labels, evaluation.predictions, tuple("abcdefg"))
    assert rows[0] == {"name": "a", "count": 1, "accuracy": 1.0, "precision": 0.5}
    assert rows[1] == {"name": "b", "count": 0, "accuracy": None, "precision": None}


@pytest.mark.parametrize("batch_size", [1000, 999, 64, 7, 1])
def test_every_example_once_for_any_batch_size(shapes, batch_size):
    kernel = tf.random.stateless_normal([32 * 32 * 3, 10], [1, 2])

    def predict(images):
        return tf.reshape(images, [-1, 32 * 32 * 3]) @ kernel

    found = evaluate_split(
        tf.distribute.get_strategy(), predict, shapes, "validation", global_batch_size=batch_size
    )
    images, labels = load_split(shapes, "validation")
    expected = predict(standardize(images, shapes))
    assert found.examples == len(labels) == shapes.count("validation")
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.logits, expected, rtol=1e-3, atol=1e-2)
