"""Smaller images at the beginning: when, how, and through the same weights."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.training.resizing import check_image_sizes, image_size_at, shrunk, with_image_size


def test_sizes_follow_the_share_of_the_run():
    stages = ((16, 0.25), (24, 0.5))
    found = [image_size_at(step, stages, total_steps=8) for step in range(8)]
    assert found == [16, 16, 24, 24, None, None, None, None]
    assert image_size_at(0, (), total_steps=8) is None


@pytest.mark.parametrize("size", [8, 16, 24, 31])
def test_images_are_shrunk_as_tensorflow_shrinks_them(size):
    images = tf.constant(np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32))
    expected = tf.image.resize(images, [size, size], antialias=True)
    np.testing.assert_allclose(tf.function(shrunk)(images, size), expected, atol=1e-5)


def make(**flags):
    return build_model(
        Config.from_flat(flags).model, num_classes=10, image_shape=(32, 32, 3), data_format="channels_last"
    )


@pytest.mark.parametrize("flags", [{"model": "fast", "width_factor": 0.25}, {"num_layers": 8}])
def test_a_smaller_model_has_the_very_weights(flags):
    model = make(**flags)
    smaller = with_image_size(model, 24)
    assert {id(weight) for weight in smaller.weights} == {id(weight) for weight in model.weights}
    assert smaller(tf.zeros([2, 24, 24, 3])).shape == (2, 10)
    images = tf.constant(np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32))
    np.testing.assert_array_equal(with_image_size(model, 32)(images), model(images))


def test_sizes_that_cannot_be_are_refused_before_work_starts():
    model = make(model="tutorial_cnn")
    with pytest.raises(InputError, match="images of 24 pixels, which tutorial_cnn can't take"):
        check_image_sizes(((24, 0.5),), model)
