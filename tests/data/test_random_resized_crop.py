"""A random-resized-crop is the documented function of its draws, the same with TensorFlow and with NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.config.data import DataConfig
from labkit.data.augment import CELLS, crop_grid, random_resized_crop
from labkit.data.hashes import augmentation_key
from labkit.data.inputs import augmentation_of, resolved_crop


def _grid(smallest, count=4000, seed=0, epoch=0, side=128):
    index = np.arange(count, dtype=np.int64)
    draws = {"key": augmentation_key(seed), "epoch": np.full_like(index, epoch), "index": index}
    return crop_grid(smallest, **draws, height=side, width=side)


@pytest.mark.long
@settings(max_examples=12, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from((1, 3))),
    smallest=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**31 - 1),
)
def test_tensorflow_and_numpy_give_the_same_bits(shape, smallest, seed):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (6, *shape), np.uint8)
    flip = generator.random(6) < 0.5
    draws = {
        "key": augmentation_key(seed),
        "epoch": generator.integers(0, 10**6, 6),
        "index": generator.integers(0, 10**9, 6),
    }
    sides = {"height": shape[0], "width": shape[1]}
    tensors = {name: tf.constant(value) if name != "key" else value for name, value in draws.items()}
    wanted = crop_grid(smallest, **tensors, **sides)
    np.testing.assert_array_equal(np.stack(crop_grid(smallest, **draws, **sides)), np.stack(wanted))
    found = random_resized_crop(images, smallest, flip, **draws)
    made = tf.function(random_resized_crop)(tf.constant(images), smallest, tf.constant(flip), **tensors)
    assert found.tobytes() == made.numpy().tobytes()


def test_a_crop_is_the_bilinear_interpolation_between_its_points():
    """The reference is in float64, and reads each pixel by the definition."""
    generator = np.random.default_rng(2)
    images, flip = generator.integers(0, 256, (12, 9, 11, 3), np.uint8), np.arange(12) % 2 == 1
    draws = {"key": 5, "epoch": np.zeros(12, np.int64), "index": np.arange(12)}
    found = random_resized_crop(images, 0.1, flip, **draws)
    grid = crop_grid(0.1, **draws, height=9, width=11)
    for number, image in enumerate(images.astype(np.float64)):
        top, left, down, across = (int(part[number]) / CELLS for part in grid)
        for row in range(9):
            for column in range(11):
                y, x = top + down * row, left + across * (10 - column if flip[number] else column)
                above, before = int(y), int(x)
                below, after = min(above + 1, 8), min(before + 1, 10)
                fy, fx = y - above, x - before
                value = (1 - fy) * ((1 - fx) * image[above, before] + fx * image[above, after])
                value += fy * ((1 - fx) * image[below, before] + fx * image[below, after])
                np.testing.assert_array_equal(found[number, row, column], np.floor(value + 0.5))


@pytest.mark.parametrize("smallest", [0.08, 0.25, 0.9])
def test_crops_lie_in_the_image_and_keep_at_least_the_smallest_share(smallest):
    grid = _grid(smallest, side=100)
    for first, step in ((grid.top, grid.down), (grid.left, grid.across)):
        assert first.min() >= 0
        assert (first + 99 * step).max() <= 99 * CELLS
    shares = grid.down * grid.across / CELLS**2
    assert smallest - 0.006 < shares.min() < smallest + 0.05  # a side is rounded to 1/256
    ratios = grid.across / grid.down
    assert 0.74 < ratios.min() < ratios.max() < 1.35


def test_share_proportions_and_place_have_the_distributions_of_torchvision():
    """Where every draw fits, up to 3/4 of the area, share and log of the proportions are uniform."""
    grid = _grid(0.2, 40_000)
    shares, ratios = grid.down * grid.across / CELLS**2, np.log(grid.across / grid.down)
    small = shares < 0.74
    counts, _ = np.histogram(shares[small], 9, (0.2, 0.74))
    assert counts.min() > 0.93 * counts.mean()
    counts, _ = np.histogram(ratios[small] / np.log(4 / 3), 8, (-1, 1))
    assert counts.min() > 0.9 * counts.mean()
    for first, step in ((grid.top, grid.down), (grid.left, grid.across)):
        places = (first / np.maximum((CELLS - step) * 127, 1))[step < CELLS]
        counts, _ = np.histogram(places, 10, (0, 1))
        assert counts.min() > 0.9 * counts.mean()
    assert abs(np.corrcoef(grid.top, grid.left)[0, 1]) < 0.5  # both are small where the crop is large
    assert abs(np.corrcoef(shares, ratios)[0, 1]) < 0.03


def test_where_no_try_fits_the_whole_image_is_kept():
    grid = _grid(0.999, 300)
    whole = (grid.down == CELLS) & (grid.across == CELLS)
    assert whole.mean() > 0.5
    image = np.random.default_rng(0).integers(0, 256, (300, 16, 16, 3), np.uint8)
    index = np.arange(300)
    draws = {"key": augmentation_key(0), "epoch": np.zeros(300, np.int64), "index": index}
    made = random_resized_crop(image, 0.999, index % 2 == 1, **draws)
    for number in np.flatnonzero(whole):
        expected = image[number, :, ::-1] if number % 2 else image[number]
        np.testing.assert_array_equal(made[number], expected)


def test_a_crop_depends_on_seed_epoch_and_index_and_not_on_the_batch():
    base = np.stack(_grid(0.25))
    for other in (_grid(0.25, seed=1), _grid(0.25, epoch=1)):
        assert (np.stack(other) == base).all(axis=0).mean() < 0.01
    np.testing.assert_array_equal(np.stack(_grid(0.25, 10)), base[:, :10])
    assert len(np.unique(base, axis=1).T) > 3900


def test_large_images_are_cropped_and_resized_unless_told():
    assert resolved_crop(DataConfig(), (96, 96, 3)) == 0.25
    assert resolved_crop(DataConfig(), (64, 64, 3)) == 0
    assert resolved_crop(DataConfig(use_distortion_for_training=False), (96, 96, 3)) == 0
    assert resolved_crop(DataConfig(random_resized_crop=0.0), (96, 96, 3)) == 0
    assert resolved_crop(DataConfig(random_resized_crop=0.5), (32, 32, 3)) == 0.5
    assert augmentation_of(DataConfig()).random_resized_crop == 0  # a run of an older version
