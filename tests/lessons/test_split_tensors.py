"""Lesson 13: its convolution is TensorFlow's, also with stride 2, and bytes follow from the map's formula."""

import numpy as np
import pytest

from course.lessons.split_tensors.costs import SPLITS, Block, cheapest
from course.lessons.split_tensors.layers import convolution, convolution_gradients


@pytest.mark.parametrize(("stride", "above"), [(1, 1), (2, 0)])
def test_a_band_needs_a_row_above_with_stride_1_and_none_with_stride_2(stride: int, above: int) -> None:
    import tensorflow as tf

    random = np.random.default_rng(0)
    image, kernel = random.normal(size=(2, 8, 6, 3)), random.normal(size=(3, 3, 3, 4))
    padded = np.pad(image, [(0, 0), (above, 1), (above, 1), (0, 0)])
    expected = tf.nn.conv2d(image, kernel, stride, "SAME").numpy()
    np.testing.assert_allclose(convolution(padded, kernel, stride), expected, atol=1e-12)


def test_gradients_of_a_convolution_are_those_of_small_changes() -> None:
    random = np.random.default_rng(0)
    padded, kernel = random.normal(size=(2, 5, 6, 3)), random.normal(size=(3, 3, 3, 4))
    gradient = random.normal(size=(2, 3, 4, 4))
    found = convolution_gradients(padded, kernel, gradient)
    for values, of_values in zip((padded, kernel), found, strict=True):
        change = 1e-6 * random.normal(size=values.shape)
        before = (convolution(padded, kernel) * gradient).sum()
        values += change
        after = (convolution(padded, kernel) * gradient).sum()
        assert after - before == pytest.approx((of_values * change).sum(), rel=1e-4)


def test_the_cheapest_split_gives_every_worker_something_to_do() -> None:
    for images, size, allowed in ((1, 56, {"channels", "height"}), (1, 2, {"channels"}), (4, 2, set(SPLITS))):
        assert cheapest(Block("", images, size, 64), 4) in allowed
