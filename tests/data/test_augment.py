"""Augmentation equals a NumPy reference, depends only on its arguments, and is uniform and independent."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from labkit.data.augment import Augmentation, augment, augmentation_offsets, crop_and_flip, cut_out
from labkit.data.hashes import augmentation_key
from labkit.data.inputs import PADDING
from labkit.data.network_input import standardize
from labkit.data.shards import load_split


def _draw(seed, epoch, index):
    epoch, index = np.broadcast_arrays(epoch, index)
    top, left, flip = augmentation_offsets(augmentation_key(seed), tf.constant(epoch), tf.constant(index))
    return (top.numpy() * 9 + left.numpy()) * 2 + flip.numpy()


def _excess(table):
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    degrees = max((table.shape[0] - 1) * (table.shape[1] - 1), 1)
    return (((table - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


@pytest.mark.parametrize(
    ("padding", "mode"),
    [
        (PADDING, "constant"),
        (0, "constant"),
        (6, "constant"),
        (0, "reflect"),
        (2, "reflect"),
        (11, "reflect"),
    ],
)
def test_crop_and_flip_equal_numpy_with_any_padding(padding, mode):
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (200, 12, 16, 3), np.uint8)
    top, left = generator.integers(0, 2 * padding + 1, (2, 200), np.int32)
    flip = generator.random(200) < 0.5
    result = crop_and_flip(tf.constant(images), top, left, flip, Augmentation(padding, mode)).numpy()
    padded = np.pad(images, [(0, 0), (padding, padding), (padding, padding), (0, 0)], mode)
    for i in range(200):
        crop = padded[i, top[i] : top[i] + 12, left[i] : left[i] + 16]
        np.testing.assert_array_equal(result[i], crop[:, ::-1] if flip[i] else crop)
    assert result.dtype == np.uint8


def test_alternating_flips_show_both_sides_in_two_epochs():
    index = tf.range(2000, dtype=tf.int64)

    def flips(epoch, kind="alternating", seed=3):
        drawn = augmentation_offsets(
            augmentation_key(seed),
            tf.fill([2000], tf.constant(epoch, tf.int64)),
            index,
            Augmentation(flip=kind),
        )
        return drawn[2].numpy()

    first = flips(0)
    assert 0.4 < first.mean() < 0.6
    np.testing.assert_array_equal(flips(1), ~first)
    np.testing.assert_array_equal(flips(2), first)
    assert 0.4 < (flips(0, seed=4) == first).mean() < 0.6
    assert not flips(0, "none").any()
    assert 0.4 < (flips(1, "random") == flips(0, "random")).mean() < 0.6


def test_every_offset_and_flip_is_equally_likely():
    draws = _draw(4, np.int64(2), np.arange(162 * 1000, dtype=np.int64))
    counts = np.bincount(draws, minlength=162)
    assert counts.size == 162
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert (chi_square - 161) / np.sqrt(2 * 161) < 6


def test_offsets_of_neighbours_and_of_epochs_are_independent():
    index = np.arange(100_000, dtype=np.int64)
    now, later = _draw(5, np.int64(0), index), _draw(5, np.int64(1), index)
    for first, second in ((now, later), (now[:-1], now[1:]), (now, _draw(6, np.int64(0), index))):
        table = np.zeros((18, 18))
        np.add.at(table, (first // 9, second // 9), 1)
        assert _excess(table) < 6
        flips = np.zeros((2, 2))
        np.add.at(flips, (first % 2, second % 2), 1)
        assert _excess(flips) < 6


def test_standardized_images_have_mean_0_and_deviation_1_over_the_split(prepared):
    images, _ = load_split(prepared, "train")
    result = standardize(images, prepared)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.mean((0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(result.std((0, 1, 2)), 1, atol=1e-4)
    reference = (images / 255 - np.array(prepared.channel_mean)) / np.array(prepared.channel_std)
    np.testing.assert_allclose(result, reference, atol=1e-5)


def covered_squares(images: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Return the corner of each image's black square, after checking that the black pixels are one square."""
    found = []
    for image in images:
        rows, columns = np.nonzero((image == 0).all(-1))
        top, left = rows.min(), columns.min()
        assert len(rows) == size**2
        assert (rows.max(), columns.max()) == (top + size - 1, left + size - 1)
        found.append((int(top), int(left)))
    return found


def test_cutout_covers_one_square_with_uniform_position():
    count, size = 2000, 5
    images = tf.fill([count, 8, 9, 3], tf.constant(7, tf.uint8))
    index, black = tf.range(count, dtype=tf.int64), np.zeros(3, np.uint8)
    corners = []
    for epoch in range(2):
        epochs = tf.fill([count], tf.constant(epoch, tf.int64))
        corners.append(
            covered_squares(cut_out(images, augmentation_key(3), epochs, index, size, black).numpy(), size)
        )
    counts = Counter(corners[0] + corners[1])
    assert set(counts) == {(top, left) for top in range(4) for left in range(5)}
    assert min(counts.values()) > 0.7 * 2 * count / 20
    same = sum(a == b for a, b in zip(*corners, strict=True)) / count
    assert same == pytest.approx(1 / 20, abs=0.02), "two epochs of an image depend on each other"


def test_cutout_uses_the_mean_color_after_cropping(prepared):
    images = tf.constant(load_split(prepared, "train")[0][:50])
    index = tf.range(50, dtype=tf.int64)
    draws = {"key": augmentation_key(0), "epoch": tf.zeros_like(index), "index": index}
    plain = augment(images, prepared, Augmentation(), **draws).numpy()
    covered = augment(images, prepared, Augmentation(cutout_size=6), **draws).numpy()
    mean = np.round(255 * np.asarray(prepared.channel_mean))
    for before, after in zip(plain, covered, strict=True):
        changed = (before != after).any(-1)
        assert 0 < changed.sum() <= 36
        assert (after[changed] == mean).all()
