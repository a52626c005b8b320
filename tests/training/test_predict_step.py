"""Predictions do not depend on how many images are predicted together."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.models.registry import build_model
from labkit.training.evaluate import SMALLEST_HALF, make_predict_step

IMAGES = np.random.default_rng(0).normal(size=(2 * SMALLEST_HALF + 1, 32, 32, 3)).astype(np.float32)


@pytest.mark.parametrize("views", ["none", "mirror_and_shift"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-5), ("mixed_bfloat16", 2e-2)]
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


def test_where_operations_run_one_at_a_time_a_batch_is_whole(monkeypatch):
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 1)
    model = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3))
    assert not _is_halved(make_predict_step(tf.distribute.get_strategy(), model), 2 * SMALLEST_HALF)


def test_weights_of_servers_are_not_read_twice_for_a_batch():
    model = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3))
    predict = make_predict_step(tf.distribute.get_strategy(), model, has_remote_weights=True)
    assert not _is_halved(predict, 2 * SMALLEST_HALF)


def _is_halved(predict, size):
    graph = predict.get_concrete_function(tf.TensorSpec([size, 32, 32, 3])).graph
    return "While" in {operation.type for operation in graph.get_operations()}
