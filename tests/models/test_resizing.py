"""Progressive resizing: the sizes by step, resizing the images, and models that share weights."""

import re

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config, DataConfig
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.models.variants import check_image_sizes, shrunk, with_image_size


def test_sizes_change_at_the_given_fractions_of_the_run():
    data = DataConfig(progressive_resizing="16:0.25,24:0.5")
    found = [data.image_size_at(step, total_steps=8) for step in range(8)]
    assert found == [16, 16, 24, 24, None, None, None, None]
    assert data.resizing_steps(total_steps=8) == (2, 4)
    assert DataConfig().image_size_at(0, total_steps=8) is None
    assert DataConfig().resizing_steps(total_steps=8) == ()


@pytest.mark.parametrize(
    ("stages", "total_steps"),
    [("16:0.3,24:0.7", 7), ("24:0.1,24:0.5", 10), ("16:0.01,24:0.02,28:1", 30), ("16:0.5", 1), ("8:1", 4)],
)
def test_resizing_steps_are_the_steps_at_which_the_size_changes(stages, total_steps):
    data = DataConfig(progressive_resizing=stages)
    sizes = [data.image_size_at(step, total_steps) for step in range(total_steps)]
    changes = [step for step in range(1, total_steps) if sizes[step] != sizes[step - 1]]
    assert data.resizing_steps(total_steps) == tuple(changes)


@pytest.mark.parametrize("size", [8, 16, 24, 31])
def test_shrunk_images_equal_tensorflows(size):
    images = tf.constant(np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32))
    expected = tf.image.resize(images, [size, size], antialias=True)
    np.testing.assert_allclose(tf.function(shrunk)(images, size), expected, atol=1e-5)


def make(**flags):
    return build_model(
        Config.from_flat(flags).model, num_classes=10, image_shape=(32, 32, 3), data_format="channels_last"
    )


@pytest.mark.parametrize("flags", [{"model": "fast", "width_factor": 0.25}, {"num_layers": 8}])
def test_a_model_of_another_size_shares_the_weights(flags):
    model = make(**flags)
    smaller = with_image_size(model, 24)
    assert {id(weight) for weight in smaller.weights} == {id(weight) for weight in model.weights}
    assert smaller(tf.zeros([2, 24, 24, 3])).shape == (2, 10)
    images = tf.constant(np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32))
    np.testing.assert_array_equal(with_image_size(model, 32)(images), model(images))


def test_unsuitable_sizes_are_refused():
    model = make(model="tutorial_cnn")
    with pytest.raises(InputError, match="of 24 × 24 pixels, which tutorial_cnn can't take") as refusal:
        check_image_sizes(((24, 0.5),), model)
    with pytest.raises(ValueError) as whole:
        with_image_size(model, 24)
    reason = re.search(r"\((.*) …\); give larger sizes", str(refusal.value))[1]
    words = str(whole.value).split()
    assert reason.split() == words[: len(reason.split())] and 60 < len(reason) < 120, "cut between two words"
