"""Colours, crops, standardization per image and mixtures, against other functions and formulas."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.data.augment import augment
from labkit.data.hashes import (
    GOLDEN,
    MULTIPLIER_1,
    MULTIPLIER_2,
    augmentation_key,
    named_key,
)
from labkit.data.inputs import Augmentation, InputShare, augmentation_of
from labkit.data.mixup import SHARES, beta_shares, cut_of_step, share_of_step
from labkit.data.network_input import NetworkInput, as_input, central_crop, network_input_of
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.training.network import _sends_standardized

MASK = 2**64 - 1


def drawn(key: int, epoch: int, index: int) -> float:
    """Return the draw in [-1, 1) of an example, with Python's whole numbers."""
    for value in (epoch, index):
        key = (key + value + GOLDEN) & MASK
        key = ((key ^ (key >> 30)) * MULTIPLIER_1) & MASK
        key = ((key ^ (key >> 27)) * MULTIPLIER_2) & MASK
        key ^= key >> 31
    return (key >> 40) / 2**23 - 1


def test_colours_follow_the_tutorial(prepared):
    images = np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), np.uint8)
    key, epoch = augmentation_key(5), 3
    bright, contrasting = named_key(key, "bright"), named_key(key, "contrast")
    arguments = {
        "key": key,
        "epoch": tf.fill([16], tf.constant(epoch, tf.int64)),
        "index": tf.range(16, dtype=tf.int64),
    }
    still = Augmentation(crop_padding=0, flip="none")
    moved = augment(tf.constant(images), prepared, still, **arguments)
    np.testing.assert_array_equal(moved, images)
    for brightness, contrast in ((63.0, 0.0), (0.0, 0.8), (63.0, 0.8)):
        settings = Augmentation(crop_padding=0, flip="none", brightness=brightness, contrast=contrast)
        found = augment(tf.constant(images), prepared, settings, **arguments).numpy()
        for index in range(16):
            image = tf.cast(images[index], tf.float32)
            image = tf.image.adjust_brightness(image, brightness * drawn(bright, epoch, index))
            image = tf.image.adjust_contrast(image, 1 + contrast * drawn(contrasting, epoch, index))
            np.testing.assert_allclose(found[index], image, atol=1e-3)
    draws = np.array([drawn(contrasting, epoch, index) for index in range(1000)])
    assert abs(draws.mean()) < 0.06 and draws.min() < -0.98 and draws.max() > 0.98


def test_crops_reach_every_position_equally_often_and_stay_inside(prepared):
    columns, rows = np.meshgrid(np.arange(32), np.arange(32))
    image = np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8)
    count = 8100
    found = augment(
        tf.constant(np.repeat(image[None], count, axis=0)),
        prepared,
        Augmentation(crop_padding=0, crop_size=24, flip="none"),
        key=augmentation_key(0),
        epoch=tf.zeros([count], tf.int64),
        index=tf.range(count, dtype=tf.int64),
    ).numpy()
    assert found.shape == (count, 24, 24, 3)
    top, left = found[:, 0, 0, 0].astype(int), found[:, 0, 0, 1].astype(int)
    np.testing.assert_array_equal(found[:, -1, -1, :2], np.stack([top + 23, left + 23], axis=1))
    times = np.bincount(9 * top + left, minlength=81)
    assert len(times) == 81 and ((times - 100) ** 2 / 100).sum() < 130  # chi-squared, 80 degrees: p < 0.0005


@pytest.mark.parametrize("size", [24, 17])
def test_evaluation_takes_the_middle_and_standardizes_as_tensorflow_does(prepared, size):
    settings = NetworkInput(size, "per_image")
    batches = eval_dataset(prepared, "test", global_batch_size=8, network_input=settings)
    images, _, index, _ = next(iter(batches))
    from labkit.data.shards import load_split

    pixels, _ = load_split(prepared, "test")
    for image, row in zip(images, index, strict=True):
        middle = tf.image.resize_with_crop_or_pad(tf.cast(pixels[row], tf.float32), size, size)
        np.testing.assert_allclose(image, tf.image.per_image_standardization(middle), atol=2e-5)


def test_standardization_of_one_grey_image_divides_by_no_zero(prepared):
    images = np.full((1, 32, 32, 3), 77, np.uint8)
    images[0, 0, 0, 0] = 78  # its deviation is below 1 / sqrt(n)
    found = as_input(images, prepared, NetworkInput(None, "per_image"))
    expected = tf.image.per_image_standardization(tf.cast(images[0], tf.float32))
    np.testing.assert_allclose(found[0], expected, atol=1e-4)
    assert central_crop(images, 32) is images


def batches_of(prepared, data, replicas, replica, *, start=0, stop=4, **settings):
    return list(
        train_dataset(
            prepared,
            global_batch_size=data.train_batch_size,
            seed=1,
            start_step=start,
            stop_step=stop,
            augmentation=augmentation_of(data),
            network_input=network_input_of(data),
            mixup_alpha=data.mixup_alpha,
            cutmix_alpha=data.cutmix_alpha,
            input_path=data.input_path,
            share=InputShare(replicas, replica, 1),
            **settings,
        )
    )


@pytest.mark.parametrize("standardization", ["dataset", "per_image"])
@pytest.mark.parametrize("mixed", [None, "mixup_alpha", pytest.param("cutmix_alpha", marks=pytest.mark.long)])
def test_an_asynchronous_worker_sees_the_images_of_one_process(prepared, mixed, standardization):
    values = {"train_batch_size": 12, "standardization": standardization} | ({mixed: 1.0} if mixed else {})
    config = Config.from_flat(values)
    sent = _sends_standardized(config)
    whole = batches_of(prepared, config.data, 1, 0)
    for (images, _), (others, _) in zip(
        whole, batches_of(prepared, config.data, 1, 0, standardized=sent), strict=True
    ):
        seen = others if sent else as_input(others, prepared, network_input_of(config.data))
        np.testing.assert_allclose(seen, images, atol=2e-5)


@pytest.mark.parametrize("path", ["memory", pytest.param("streaming", marks=pytest.mark.long)])
def test_mixup_mixes_within_the_global_batch_on_any_number_of_replicas_and_after_a_resume(prepared, path):
    values = {"train_batch_size": 12, "input_path": path, "mixup_alpha": 1.0}
    data = Config.from_flat(values).data
    plain = batches_of(prepared, Config.from_flat(values | {"mixup_alpha": 0.0}).data, 1, 0)
    mixed = batches_of(prepared, data, 1, 0)
    shares = set()
    for number, ((images, labels), (mixtures, targets)) in enumerate(zip(plain, mixed, strict=True)):
        share = float(share_of_step(1, number, 1.0))
        shares.add(share)
        # The partners, found by what is left of a mixture: a permutation of the batch.
        rest = (mixtures.numpy() - share * images.numpy()) / (1 - share)
        distances = np.abs(rest[:, None] - images.numpy()[None]).max(axis=(2, 3, 4))
        partners = distances.argmin(axis=1)
        assert sorted(partners) == list(range(12)) and distances.min(axis=1).max() < 1e-3
        one_hot = np.eye(10)[labels.numpy()]
        np.testing.assert_allclose(targets, share * one_hot + (1 - share) * one_hot[partners], atol=1e-6)
    assert len(shares) == 4
    halves = [batches_of(prepared, data, 2, replica) for replica in (0, 1)]
    for number, (images, targets) in enumerate(mixed):
        for found, whole in ((0, images), (1, targets)):
            parts = np.concatenate([half[number][found].numpy() for half in halves])
            np.testing.assert_array_equal(parts, whole)
    [resumed] = batches_of(prepared, data, 1, 0, start=3)
    np.testing.assert_array_equal(resumed[0], mixed[3][0])


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 1.7, 8.0])
def test_shares_are_quantiles_of_the_beta_distribution(alpha):
    shares = beta_shares(alpha).astype(np.float64)
    assert len(shares) == SHARES and (np.diff(shares) >= 0).all()
    wanted = (np.arange(SHARES) + 0.5) / SHARES
    # Near 1, float32 leaves too few digits for the comparison, and below 1e-38 none.
    below = np.flatnonzero((shares > 1e-37) & (shares < 0.5))
    tensor = tf.constant(shares[below], tf.float64)
    probabilities = tf.math.betainc(tf.constant(alpha, tf.float64), tf.constant(alpha, tf.float64), tensor)
    np.testing.assert_allclose(probabilities, wanted[below], atol=2e-6)
    np.testing.assert_allclose(shares + shares[::-1], 1.0, atol=1e-7)


@pytest.mark.parametrize("path", ["memory", pytest.param("streaming", marks=pytest.mark.long)])
def test_cutmix_covers_a_rectangle_and_mixes_the_labels_by_its_area(prepared, path):
    values = {"train_batch_size": 12, "input_path": path, "cutmix_alpha": 1.0}
    data = Config.from_flat(values).data
    plain = batches_of(prepared, Config.from_flat(values | {"cutmix_alpha": 0.0}).data, 1, 0)
    cut = batches_of(prepared, data, 1, 0)
    covered = 0
    for number, ((images, labels), (mixtures, targets)) in enumerate(zip(plain, cut, strict=True)):
        (top, bottom), (left, right) = cut_of_step(1, number, 1.0, 32, 32)
        inside = np.zeros((32, 32), bool)
        inside[top:bottom, left:right] = True
        covered += inside.any()
        images, mixtures = images.numpy(), mixtures.numpy()
        np.testing.assert_array_equal(mixtures[:, ~inside], images[:, ~inside])
        partners = [
            int(np.argmin(np.abs(images[:, inside] - one[inside]).sum(axis=(1, 2)))) for one in mixtures
        ]
        np.testing.assert_array_equal(mixtures[:, inside], images[partners][:, inside])
        share = 1 - inside.mean()
        own, theirs = np.eye(10)[labels.numpy()], np.eye(10)[labels.numpy()[partners]]
        if inside.any():
            assert sorted(partners) == list(range(12))
        np.testing.assert_allclose(targets, share * own + (1 - share) * theirs, atol=1e-6)
    assert covered > 1
    halves = [batches_of(prepared, data, 2, first) for first in (0, 1)]
    for number, (images, _) in enumerate(cut):
        parts = [half[number][0] for half in halves]
        np.testing.assert_array_equal(np.concatenate(parts), images)


@pytest.mark.long
def test_rectangles_have_the_areas_of_the_paper():
    generator = np.random.default_rng(0)
    cuts = [cut_of_step(3, step, 1.0, 32, 48) for step in range(4000)]
    areas = np.array([(bottom - top) * (right - left) for (top, bottom), (left, right) in cuts])
    side = np.sqrt(1 - generator.beta(1.0, 1.0, 4000))  # the authors' rand_bbox
    wanted = np.ones(4000)
    for size in (32, 48):
        middle, half = generator.integers(0, size, 4000), (size * side).astype(int) // 2
        wanted *= np.clip(middle + half, 0, size) - np.clip(middle - half, 0, size)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        np.testing.assert_allclose(np.quantile(areas, share), np.quantile(wanted, share), atol=40)
