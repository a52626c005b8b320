"""Batch normalization compared with Keras and NumPy, local response normalization with TensorFlow."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.models.layers import (
    BatchNormalization,
    LocalResponseNormalization,
    recorded_batch_statistics,
    shifting_only,
)

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


def test_batch_statistics_are_recorded_and_moving_averages_unchanged():
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


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_shifting_only_adds_the_offsets_to_the_channels(data_format):
    layer, other = (both(data_format)[0] for _ in range(2))
    channels = IMAGES.shape[-1 if data_format == "channels_last" else 1]
    offsets = np.arange(channels, dtype=np.float32)
    along = offsets if data_format == "channels_last" else offsets[:, None, None]
    with shifting_only({layer: tf.constant(offsets)}):
        np.testing.assert_allclose(layer(IMAGES, training=False), IMAGES + along, rtol=1e-6)
        assert not np.allclose(other(IMAGES, training=False), IMAGES + along)
    np.testing.assert_array_equal(layer(IMAGES, training=False), other(IMAGES, training=False))


def test_batch_normalization_can_be_saved():
    layer = BatchNormalization(data_format="channels_first", decay=0.5, epsilon=0.01, synchronized=True)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()


# ---- local response normalization ----------------------------------------------------------------------

TUTORIAL = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9, "beta": 0.75}
STRONG = {"depth_radius": 2, "bias": 0.5, "alpha": 0.3, "beta": 0.75}
OTHER_POWER = {**STRONG, "beta": 0.6}
CHANNELS = np.random.default_rng(1).normal(2.0, 3.0, size=(2, 3, 4, 11))


def local_response(data_format: str, dtype: str, values: dict):
    """Return outputs and gradients of a weighted sum, channels last, as float64."""
    first = data_format == "channels_first"
    images = CHANNELS.transpose(0, 3, 1, 2) if first else CHANNELS
    images = tf.constant(images, "float64" if dtype == "float64" else "float32")
    layer = LocalResponseNormalization(**values, data_format=data_format, dtype=dtype)
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = layer(images)
        loss = tf.reduce_sum(tf.sin(tf.cast(outputs, "float32")))
    found = [tf.cast(outputs, "float64").numpy(), tf.cast(tape.gradient(loss, images), "float64").numpy()]
    assert outputs.dtype == layer.compute_dtype
    return [value.transpose(0, 2, 3, 1) if first else value for value in found]


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("values", [TUTORIAL, STRONG, OTHER_POWER], ids=["tutorial", "strong", "power"])
def test_local_response_normalization_equals_tensorflows(data_format, values):
    images = tf.constant(CHANNELS, "float32")
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = tf.nn.local_response_normalization(images, **values)
        loss = tf.reduce_sum(tf.sin(outputs))
    expected = [outputs, tape.gradient(loss, images)]
    for ours, theirs in zip(local_response(data_format, "float32", values), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("mixed_bfloat16", 0.02)])
def test_local_response_normalization_in_other_precisions(data_format, dtype, tolerance):
    outputs, gradients = local_response(data_format, dtype, STRONG)
    expected = np.empty_like(CHANNELS)
    for channel in range(CHANNELS.shape[-1]):
        near = CHANNELS[..., max(0, channel - 2) : channel + 3]
        expected[..., channel] = CHANNELS[..., channel] / (0.5 + 0.3 * (near**2).sum(-1)) ** 0.75
    assert np.abs(outputs - expected).max() < tolerance * np.abs(expected).max()
    exact = local_response(data_format, "float32", STRONG)[1]
    assert np.abs(gradients - exact).max() < max(tolerance, 1e-5) * np.abs(exact).max()


def test_local_response_normalization_can_be_saved():
    layer = LocalResponseNormalization(**TUTORIAL, data_format="channels_first", dtype="float64")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
