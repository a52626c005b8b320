"""Folding batch normalization into the convolutions does not change predictions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.models.layers import BatchNormalization
from labkit.models.registry import build_model
from labkit.models.variants import foldable, folded_normalization
from labkit.training.evaluate import make_predict_step

IMAGES = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype(np.float32)
NETWORKS = {
    # (fields, folded normalizations, all normalizations). Those after a pool or a sum can't be folded.
    "v1": ({"num_layers": 8}, 7, 7),
    "float64": ({"num_layers": 8, "precision": "float64"}, 7, 7),
    "v2": ({"num_layers": 8, "resnet_version": 2}, 3, 7),
    "bottleneck": ({"num_layers": 11, "block": "bottleneck"}, 13, 13),
    "vgg11": ({"model": "vgg", "num_layers": 11}, 8, 8),
    "fast": ({"model": "fast", "width_factor": 0.25}, 3, 6),
    "fast_residual": ({"model": "fast_residual", "width_factor": 0.25}, 6, 9),
    "imagenet_resnet18": ({"model": "imagenet_resnet", "num_layers": 18}, 20, 20),
    "tutorial_cnn": ({"model": "tutorial_cnn"}, 0, 0),
    "mobilenetv2": ({"model": "keras_application"}, 35, 52),  # not those after its 17 depthwise convolutions
}


def build(config: ModelConfig) -> keras.Model:
    """Return the network with random statistics, gamma and beta, as after training."""
    model = build_model(config, num_classes=10, image_shape=(32, 32, 3))
    random = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, BatchNormalization):
            channels = layer.beta.shape
            layer.moving_mean.assign(random.normal(0, 0.3, channels))
            layer.moving_variance.assign(random.uniform(0.5, 2, channels))
            layer.gamma.assign(random.uniform(0.5, 1.5, channels))
            layer.beta.assign(random.normal(0, 0.3, channels))
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_folding_does_not_change_the_logits(name):
    fields, folded, norms = NETWORKS[name]
    model = build(ModelConfig(**fields))
    assert len(foldable(model)) == folded
    assert sum(isinstance(layer, BatchNormalization) for layer in model.layers) == norms
    before = [np.asarray(weight) for weight in model.weights]
    plain = np.asarray(model(IMAGES, training=False))
    with folded_normalization(model):
        found = np.asarray(model(IMAGES, training=False))
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4 * np.abs(plain).max())
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    np.testing.assert_array_equal(model(IMAGES, training=False), plain)


def test_the_graph_contains_no_normalization_and_uses_the_current_weights():
    model = build(ModelConfig(num_layers=8, precision="mixed_bfloat16"))

    @tf.function
    def predict(images):
        with folded_normalization(model):
            return model(images, training=False)

    first = predict(IMAGES).numpy()
    kinds = {operation.type for operation in predict.get_concrete_function(IMAGES).graph.get_operations()}
    assert "BiasAdd" in kinds
    assert not [kind for kind in kinds if "BatchNorm" in kind]
    for weight in model.weights:
        weight.assign(np.asarray(weight) * 0.9)
    second = predict(IMAGES).numpy()
    np.testing.assert_allclose(
        second, model(IMAGES, training=False), rtol=0.05, atol=0.05 * np.abs(second).max()
    )
    assert np.abs(second - first).max() > 0.05 * np.abs(first).max()


def test_only_plain_convolutions_that_are_used_once_are_folded():
    images = keras.Input((8, 8, 3))
    shared = keras.layers.Conv2D(4, 3, use_bias=False, name="shared")(images)
    seen = keras.layers.Conv2D(4, 3, use_bias=False, name="an_output")(images)
    biased = keras.layers.Conv2D(4, 3, name="biased")(images)
    active = keras.layers.Conv2D(4, 3, use_bias=False, activation="relu", name="active")(images)
    padded = keras.ops.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    alone = keras.layers.Conv2D(4, 3, use_bias=False, name="alone")(images)
    twice = BatchNormalization()
    inputs = (shared, seen, biased, active, padded, alone)
    normalized = [
        *(BatchNormalization()(values) for values in inputs),
        *(twice(keras.layers.Conv2D(4, 3, use_bias=False)(images)) for _ in range(2)),
    ]
    for outputs in ([*normalized, shared, seen], {"all": [*normalized, shared], "one": seen}):
        assert [convolution.name for convolution, _ in foldable(keras.Model(images, outputs))] == ["alone"]


def test_nested_networks_are_not_folded():
    images = keras.Input((8, 8, 3))
    convolution = keras.layers.Conv2D(4, 3, use_bias=False)
    inner = keras.Model(images, convolution(images))
    outer = keras.Model(images, [BatchNormalization()(convolution(images)), inner(images)])
    assert foldable(outer) == []
    assert foldable(keras.Sequential([images, convolution, BatchNormalization()])) == []


def test_the_predict_step_folds():
    model = build(ModelConfig(num_layers=8))
    predict_step = make_predict_step(tf.distribute.get_strategy(), model)
    np.testing.assert_allclose(predict_step(IMAGES), model(IMAGES, training=False), rtol=1e-4, atol=1e-3)
    graph = predict_step.get_concrete_function(IMAGES).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert not [kind for kind in kinds if "BatchNorm" in kind]
