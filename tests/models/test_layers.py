"""Batch normalization against Keras's own layer and against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.models.layers import BatchNormalization, recorded_batch_statistics

IMAGES = np.random.default_rng(0).normal(2.0, 3.0, size=(4, 5, 6, 7)).astype(np.float32)


def both(data_format: str):
    ours = BatchNormalization(data_format=data_format, decay=0.9, epsilon=1e-3)
    theirs = keras.layers.BatchNormalization(
        axis=-1 if data_format == "channels_last" else 1, momentum=0.9, epsilon=1e-3
    )
    for layer in (ours, theirs):
        layer.build(IMAGES.shape)
        layer.gamma.assign(np.linspace(0.5, 1.5, layer.gamma.shape[0]))
        layer.beta.assign(np.linspace(-1, 1, layer.gamma.shape[0]))
    return ours, theirs


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_equal_those_of_keras(data_format, training):
    results = []
    for layer in both(data_format):
        images = tf.constant(IMAGES)
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs = layer(images, training=training)
            loss = tf.reduce_sum(tf.sin(outputs))
        gradients = tape.gradient(loss, [images, layer.gamma.value, layer.beta.value])
        results.append([outputs, *gradients])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_statistics_of_the_batch_are_recorded_and_nothing_is_moved():
    layer, _ = both("channels_last")
    with recorded_batch_statistics() as recorded:
        layer(IMAGES, training=True)
        layer(IMAGES, training=False)
    [(found, mean, variance)] = recorded
    assert found is layer
    np.testing.assert_allclose(mean, IMAGES.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, IMAGES.var(axis=(0, 1, 2), ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(layer.moving_mean, 0)
    np.testing.assert_array_equal(layer.moving_variance, 1)


def test_layer_survives_saving():
    layer = BatchNormalization(data_format="channels_first", decay=0.5, epsilon=0.01, synchronized=True)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
