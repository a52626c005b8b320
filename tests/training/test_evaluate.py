"""Evaluation figures against NumPy; every example once, with the same logits for any batch size."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.commands.evaluate import _print_classes
from labkit.config import ModelConfig
from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.models.registry import build_model
from labkit.training.evaluate import SMALLEST_HALF, Evaluation, evaluate_split, make_predict_step
from labkit.training.scores import class_metrics

LOGITS = np.array([[2, 1, 0, -1, -2, -3, -4], [0, 0, 0, 0, 0, 0, 9], [5, 4, 3, 2, 1, 0, -1.0]], np.float32)
LABELS = np.array([0, 2, 5], np.int32)


def test_figures_by_hand():
    evaluation = Evaluation("test", LOGITS, LABELS, np.arange(3), 1.0)
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(evaluation.probabilities, chances, rtol=1e-6)
    assert evaluation.loss == pytest.approx(-np.log(chances[[0, 1, 2], LABELS]).mean(), rel=1e-6)
    assert evaluation.metrics["accuracy"] == pytest.approx(1 / 3)
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


IMAGES = np.random.default_rng(0).normal(size=(2 * SMALLEST_HALF + 1, 32, 32, 3)).astype(np.float32)


@pytest.mark.parametrize("views", [pytest.param("none", marks=pytest.mark.long), "mirror_and_shift"])
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [
        *(pytest.param(name, 1e-5, marks=pytest.mark.long) for name in ("float32", "float64")),
        ("mixed_bfloat16", 2e-2),
    ],
)
def test_a_batch_by_halves_has_the_logits_of_small_batches(precision, tolerance, views):
    model = build_model(
        ModelConfig(num_layers=8, precision=precision), num_classes=10, image_shape=(32, 32, 3)
    )
    predict = make_predict_step(tf.distribute.get_strategy(), model, views)
    assert _is_halved(predict, 2 * SMALLEST_HALF)
    assert not _is_halved(predict, 2 * SMALLEST_HALF + 1) and not _is_halved(predict, SMALLEST_HALF)
    expected = np.concatenate([predict(tf.constant(IMAGES[i : i + 43])) for i in (0, 43, 86)])
    for size in (2 * SMALLEST_HALF, 2 * SMALLEST_HALF + 1):
        found = predict(tf.constant(IMAGES[:size])).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected[:size], rtol=tolerance, atol=tolerance)


def test_a_batch_is_whole_where_operations_run_one_at_a_time_and_where_servers_hold_the_weights(monkeypatch):
    model = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3))
    strategy = tf.distribute.get_strategy()
    assert not _is_halved(make_predict_step(strategy, model, has_remote_weights=True), 2 * SMALLEST_HALF)
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 1)
    assert not _is_halved(make_predict_step(strategy, model), 2 * SMALLEST_HALF)


def _is_halved(predict, size):
    graph = predict.get_concrete_function(tf.TensorSpec([size, 32, 32, 3])).graph
    return "While" in {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize(("metric", "first"), [("accuracy", "0"), ("mean_absolute_error", "59")])
def test_of_very_many_classes_or_numbers_the_worst_are_printed(metric, first, capsys):
    rows = [{"name": str(place), "count": 3, metric: place / 60} for place in range(60)]
    _print_classes([*rows, {"name": "none", "count": 0, metric: None}])
    assert len(lines := capsys.readouterr().out.splitlines()) == 52
    assert lines[2].split()[0] == first
