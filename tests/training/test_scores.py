"""Figures of a split, counted one by one in plain Python."""

import math
import warnings

import numpy as np
import pytest

from labkit.training.scores import (
    class_metrics,
    first_of_each_class,
    indicators,
    multi_label_scores,
    right,
    sigmoid,
    softmax,
)

CLASSES = ("a", "b", "c", "d")
# Class c is predicted and never true; d neither.
LABELS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]], np.int32)
LOGITS = np.array(
    [[2, -1, -3, -1], [1, -2, -1, -5], [-1, -1, -1, -1], [-1, 3, 0.5, -1], [0, 0.1, -9, -1]], np.float32
)


def test_several_labels_counted_one_by_one():
    pairs = [(bool(t), z > 0) for t, z in zip(LABELS.ravel(), LOGITS.ravel(), strict=True)]
    hits = sum(t and p for t, p in pairs)
    losses = [
        -math.log(1 / (1 + math.exp(-z)) if t else 1 / (1 + math.exp(z)))
        for t, z in zip(LABELS.ravel().tolist(), LOGITS.ravel().astype(float).tolist(), strict=True)
    ]
    # a: 2 hits of 2 true, 2 predicted. b: 2 of 3 true, 2 predicted. c: 0 of 0, 1 predicted. d: nothing.
    assert multi_label_scores(LABELS, LOGITS) == pytest.approx(
        {
            "loss": sum(losses) / 5,
            "accuracy": 3 / 5,
            "binary_accuracy": sum(t == p for t, p in pairs) / 20,
            "f1_micro": 2 * hits / (sum(t for t, _ in pairs) + sum(p for _, p in pairs)),
            "f1_macro": (1 + 4 / 5 + 0 + 0) / 4,
        }
    )
    assert multi_label_scores(LABELS, LOGITS)["f1_micro"] == pytest.approx(8 / 10)


def test_the_figures_of_each_label_and_of_each_class_of_one_label():
    rows = class_metrics(LABELS, LOGITS > 0, CLASSES)
    assert rows[0] == {"name": "a", "count": 2, "recall": 1.0, "precision": 1.0, "f1": 1.0}
    assert rows[1] == {"name": "b", "count": 3, "recall": pytest.approx(2 / 3), "precision": 1.0, "f1": 0.8}
    assert rows[2] == {"name": "c", "count": 0, "recall": None, "precision": 0.0, "f1": 0.0}
    assert rows[3] == {"name": "d", "count": 0, "recall": None, "precision": None, "f1": None}
    rows = class_metrics(np.array([0, 0, 1]), np.array([0, 1, 1]), CLASSES)
    assert rows[0] == {"name": "a", "count": 2, "accuracy": 0.5, "precision": 1.0}
    assert rows[1] == {"name": "b", "count": 1, "accuracy": 1.0, "precision": 0.5}
    assert rows[3] == {"name": "d", "count": 0, "accuracy": None, "precision": None}
    assert right(LOGITS > 0, LABELS).tolist() == [True, False, True, False, True], "right is every label"
    assert right(np.array([1, 2]), np.array([1, 0])).tolist() == [True, False]
    nothing = multi_label_scores(np.zeros((3, 2), np.int32), np.full((3, 2), -1.0))
    assert (nothing["accuracy"], nothing["f1_micro"], nothing["f1_macro"]) == (1, 0, 0)


def test_the_first_of_each_class_that_has_one():
    assert first_of_each_class(LABELS, 4) == {0: 0, 1: 1}
    assert first_of_each_class(np.array([3, 1, 3, 1]), 4) == {1: 1, 3: 0}
    np.testing.assert_array_equal(indicators(np.array([3, 1]), 4), np.eye(4)[[3, 1]])


@pytest.mark.parametrize("function", [softmax, sigmoid])
def test_probabilities_never_overflow(function):
    found = function(np.array([[1e4, -1e4, 0.0]], np.float32))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[1, 0, 0.0 if function is softmax else 0.5]])


def test_infinite_logits_are_nan_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(softmax(np.array([[np.inf, 0.0], [np.inf, np.inf]], np.float32))[:, 0]).all()
