"""Muon: its directions, its length, and what it leaves alone."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.training.muon import move, orthogonalized


def by_singular_values(matrix: np.ndarray) -> np.ndarray:
    """Each singular value s through 3 rounds of 3.4445 s - 4.7750 s^3 + 2.0315 s^5, from s / |matrix|."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.sqrt((matrix**2).sum())
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (7, 7)])
def test_singular_values_go_towards_one_and_directions_stay(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    found = orthogonalized(tf.constant(matrix)).numpy()
    np.testing.assert_allclose(found, by_singular_values(matrix), rtol=1e-5, atol=1e-6)
    values = np.linalg.svd(orthogonalized(tf.constant(matrix), iterations=8).numpy(), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_one_update_is_that_of_the_formula():
    generator = np.random.default_rng(1)
    weight, velocity, gradient = generator.normal(size=(3, 3, 3, 4, 6))
    variable, moving = tf.Variable(weight), tf.Variable(velocity)
    move(variable, moving, tf.constant(gradient), tf.constant(0.24, tf.float64), 0.6)
    expected_velocity = 0.6 * velocity + gradient
    np.testing.assert_allclose(moving.numpy(), expected_velocity)
    direction = by_singular_values((gradient + 0.6 * expected_velocity).reshape(-1, 6)).reshape(weight.shape)
    expected = weight * np.sqrt(6) / np.sqrt((weight**2).sum()) - 0.24 * direction
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_size_of_a_gradient_does_not_matter():
    weight, gradient = np.random.default_rng(2).normal(size=(2, 3, 3, 4, 6))
    moved = []
    for factor in (1.0, 1000.0):
        variable, velocity = tf.Variable(weight), tf.Variable(tf.zeros_like(weight))
        move(variable, velocity, tf.constant(factor * gradient), tf.constant(0.1, tf.float64), 0.6)
        moved.append(variable.numpy())
    np.testing.assert_allclose(*moved, rtol=1e-4, atol=1e-6)
