"""Muon: orthogonalization, one update by its formula, and which kernels it trains."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.optim.optimizers import check_muon, muon_kernels, orthogonalized, update_kernel


def by_singular_values(matrix: np.ndarray) -> np.ndarray:
    """Apply 3.4445 s - 4.7750 s^3 + 2.0315 s^5 three times to the singular values of matrix / |matrix|."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt((matrix**2).sum())
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (7, 7)])
def test_orthogonalization_changes_only_the_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    found = orthogonalized(tf.constant(matrix)).numpy()
    np.testing.assert_allclose(found, by_singular_values(matrix), rtol=1e-5, atol=1e-6)
    values = np.linalg.svd(orthogonalized(tf.constant(matrix), iterations=8).numpy(), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_an_update_follows_the_formula_whatever_the_norm_of_the_gradient(factor):
    generator = np.random.default_rng(1)
    weight, velocity, gradient = generator.normal(size=(3, 3, 3, 4, 6))
    velocity, gradient = factor * velocity, factor * gradient
    variable, moving = tf.Variable(weight), tf.Variable(velocity)
    update_kernel(variable, moving, tf.constant(gradient), tf.constant(0.24, tf.float64), 0.6)
    expected_velocity = 0.6 * velocity + gradient
    np.testing.assert_allclose(moving.numpy(), expected_velocity)
    direction = by_singular_values((gradient + 0.6 * expected_velocity).reshape(-1, 6)).reshape(weight.shape)
    expected = weight * np.sqrt(6) / np.sqrt((weight**2).sum()) - 0.24 * direction
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_depthwise_kernels_and_convolutions_with_a_bias_are_left_to_sgd():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Conv2D(6, 3, use_bias=False, name="before_a_norm"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3, use_bias=False),
            layers.BatchNormalization(),
            layers.Conv2D(5, 1, name="with_a_bias"),
        ]
    )
    (kernel,) = muon_kernels(model)
    assert kernel is model.get_layer("before_a_norm").kernel


def small(model: str, **fields):
    config = ModelConfig(model=model, num_layers=None, **fields)
    return build_model(config, num_classes=3, image_shape=(32, 32, 3), data_format="channels_last", seed=0)


def test_unsuitable_networks_and_freezing_are_refused():
    with pytest.raises(InputError, match="recipe auto takes it.*tutorial_cnn has none; choose --opt"):
        check_muon(small("tutorial_cnn"), frozenset())
    fast = small("fast", width_factor=0.25)
    check_muon(fast, frozenset())
    stage = {layer.name for layer in fast.layers if layer.name.startswith("stage1")}
    check_muon(fast, stage)
    norms = {name for name in stage if "norm" in name}
    with pytest.raises(InputError, match="normalization of stage1 but not its convolutions"):
        check_muon(fast, norms)


def test_a_kernel_of_zeros_is_updated_and_stays_finite():
    variable, velocity = tf.Variable(tf.zeros([3, 3, 4, 6])), tf.Variable(tf.zeros([3, 3, 4, 6]))
    update_kernel(variable, velocity, tf.ones([3, 3, 4, 6]), tf.constant(0.1), 0.6)
    assert np.isfinite(variable.numpy()).all()
    assert variable.numpy().any()
