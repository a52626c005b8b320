"""Test-time augmentation compared with NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.training.evaluate import averaged_over_views

IMAGES = np.random.default_rng(0).normal(size=(3, 6, 8, 2)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(6 * 8 * 2, 5)).astype(np.float32)


def model(images) -> tf.Tensor:
    """Return logits that are a linear function of all pixels, so the position of each pixel matters."""
    return tf.reshape(images, [-1, 6 * 8 * 2]) @ KERNEL


def by_hand(images: np.ndarray, views: str) -> np.ndarray:
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)], "reflect")
    weighted = {
        "none": [(1.0, images)],
        "mirror": [(0.5, images), (0.5, images[:, :, ::-1])],
        "mirror_and_shift": [
            (0.25, images),
            (0.25, images[:, :, ::-1]),
            *(
                (0.125, side)
                for shifted in (padded[:, :6, :8], padded[:, 2:, 2:])
                for side in (shifted, shifted[:, :, ::-1])
            ),
        ],
    }
    return sum(weight * view.reshape(3, -1) for weight, view in weighted[views]) @ KERNEL


@pytest.mark.parametrize("views", ["none", "mirror", "mirror_and_shift"])
def test_logits_are_the_weighted_mean_over_the_views(views):
    found = averaged_over_views(model, tf.constant(IMAGES), views).numpy()
    np.testing.assert_allclose(found, by_hand(IMAGES, views), rtol=1e-4, atol=1e-4)


def test_an_image_and_its_mirror_image_get_the_same_logits():
    mirrored = tf.constant(IMAGES[:, :, ::-1])
    ours, theirs = (averaged_over_views(model, each, "mirror") for each in (tf.constant(IMAGES), mirrored))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
