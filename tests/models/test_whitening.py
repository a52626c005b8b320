"""The whitening convolution, and initialization to the identity."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.models.convolution import Dirac, Whitening, whitening_kernel

# Neighbouring pixels and channels are correlated, as in photographs.
NOISE = np.random.default_rng(0).normal(size=(200, 12, 12, 3))
IMAGES = (NOISE.cumsum(axis=1) + NOISE[:, :, ::-1].cumsum(axis=2) + NOISE.sum(axis=3, keepdims=True)).astype(
    np.float32
)


def responses(kernel: np.ndarray) -> np.ndarray:
    return tf.nn.conv2d(IMAGES, kernel, 1, "VALID").numpy().reshape(-1, kernel.shape[-1])


def test_responses_are_uncorrelated_with_variance_1_and_have_both_signs():
    kernel = whitening_kernel(IMAGES, 2, epsilon=0.0)
    assert kernel.shape == (2, 2, 3, 24) and kernel.dtype == np.float32
    found = responses(kernel).astype(np.float64)
    np.testing.assert_allclose(found[:, :12].T @ found[:, :12] / len(found), np.eye(12), atol=1e-3)
    np.testing.assert_array_equal(found[:, 12:], -found[:, :12])


def test_filters_are_ordered_by_variance_and_epsilon_damps_the_smallest():
    damped = responses(whitening_kernel(IMAGES, 2, epsilon=1.0)).var(axis=0)[:12]
    assert (np.diff(damped) < 0).all() and damped[0] > 0.9 > damped[-1]


def test_the_largest_weight_of_each_filter_is_positive():
    kernel = whitening_kernel(IMAGES, 2, epsilon=5e-4)[..., :12].reshape(12, 12)
    assert (kernel[np.abs(kernel).argmax(axis=0), range(12)] > 0).all()


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_nothing_is_trained_also_after_loading(data_format, tmp_path):
    images = IMAGES if data_format == "channels_last" else IMAGES.transpose(0, 3, 1, 2)
    inputs = keras.Input(images.shape[1:])
    model = keras.Model(inputs, Whitening(24, data_format=data_format)(inputs))
    layer = model.layers[-1]
    layer.adapt(IMAGES)
    assert not model.trainable_weights
    np.testing.assert_array_equal(layer.kernel, whitening_kernel(IMAGES, 2, 5e-4))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not loaded.trainable_weights
    np.testing.assert_array_equal(loaded.layers[-1].kernel, layer.kernel)


@pytest.mark.parametrize(("channels", "filters"), [(4, 9), (4, 4), (9, 4)])
def test_dirac_filters_copy_their_channels(channels, filters):
    other = keras.initializers.RandomNormal(seed=1)
    kernel = np.asarray(Dirac(other)((3, 3, channels, filters), dtype="float32"))
    images = np.random.default_rng(0).normal(size=(2, 5, 5, channels)).astype(np.float32)
    copied = min(channels, filters)
    outputs = tf.nn.conv2d(images, kernel, 1, "SAME").numpy()
    np.testing.assert_allclose(outputs[..., :copied], images[..., :copied], rtol=1e-6)
    expected = keras.initializers.RandomNormal(seed=1)((3, 3, channels, filters))
    np.testing.assert_array_equal(kernel[..., copied:], np.asarray(expected)[..., copied:])
