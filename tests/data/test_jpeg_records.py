"""Records that hold JPEGs give the pixels that every JPEG decoder gives, on every way to them."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.data.batch_of_step import batch_of_step
from labkit.data.inputs import augmentation_of
from labkit.data.manifest import load_manifest, write_manifest
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.data.records import parse_batch, write_derived
from labkit.data.shards import decoded, load_split, read_labels, read_rows, read_shard
from labkit.data.tfrecord import payload, write_shard
from labkit.errors import InputError
from tests.jpegs import jpeg_of

SIDE = 72


@pytest.mark.parametrize("quality", [30, 95, 100])
@pytest.mark.parametrize("side", [1, 8, 65])
def test_tensorflow_and_pillow_decode_the_same_pixels(jpegs, quality, side):
    noise = np.random.default_rng(side).integers(0, 256, (5, side, side, 3), np.uint8)
    smooth = np.linspace(0, 255, noise.size).reshape(noise.shape).astype(np.uint8)
    contents = [jpeg_of(image, quality=quality) for image in (*noise, *smooth)]
    shape = (side, side, 3)
    payloads = tf.constant([payload(content, 9 - row, row) for row, content in enumerate(contents)])
    images, labels, index = parse_batch(payloads, dataclasses.replace(jpegs, image_shape=shape))
    np.testing.assert_array_equal(images, [decoded(content, shape) for content in contents])
    assert labels.numpy().tolist() == list(range(9, -1, -1))
    assert index.numpy().tolist() == list(range(10))
    if quality == 100:
        assert np.abs(images.numpy().astype(int) - np.concatenate([noise, smooth])).max() < 12


def test_all_readers_give_the_same_pixels_and_labels(jpegs):
    for split in jpegs.splits:
        images, labels = load_split(jpegs, split)
        assert images.shape == (jpegs.count(split), SIDE, SIDE, 3)
        rows = np.arange(len(images))[::-3]
        some, their_labels = read_rows(jpegs, split, rows)
        np.testing.assert_array_equal(some, images[rows])
        np.testing.assert_array_equal(their_labels, labels[rows])
        np.testing.assert_array_equal(read_labels(jpegs, split, rows), labels[rows])
        whole, all_labels, all_rows = read_shard(jpegs, jpegs.splits[split].shards[0])
        np.testing.assert_array_equal(whole, images)
        np.testing.assert_array_equal(all_labels, labels)
        np.testing.assert_array_equal(all_rows, np.arange(len(labels)))


@pytest.mark.parametrize("path", ["memory", pytest.param("streaming", marks=pytest.mark.long)])
@pytest.mark.parametrize("fields", [{}, {"flip": "alternating", "cutout_size": 20}])
def test_a_batch_without_tensorflow_is_that_of_the_training(jpegs, path, fields):
    fields = {"train_batch_size": 7, "input_path": path, "random_resized_crop": 0.25, **fields}
    data = Config.from_flat(fields).data
    batch = batch_of_step(jpegs, data, seed=3, step=26)  # with examples of two epochs
    [(images, labels, index)] = train_dataset(
        jpegs,
        global_batch_size=7,
        seed=3,
        start_step=25,
        stop_step=26,
        augmentation=augmentation_of(data),
        input_path=path,
        with_index=True,
    )
    assert batch.standardized.tobytes() == images.numpy().tobytes()
    assert batch.labels.tobytes() == labels.numpy().tobytes()
    assert batch.index.tobytes() == index.numpy().tobytes()


def _broken(jpegs, folder, content):
    """Return the data set with another image as number 3 of the test split; all checksums are right."""
    images = [jpeg_of(image) for image in load_split(jpegs, "test")[0]]
    images[3] = content(images[3])
    made = shutil.copytree(jpegs.directory, folder / jpegs.dataset)
    shard = write_shard(made / jpegs.splits["test"].shards[0].file, images, np.arange(40) % 10, 0)
    split = dataclasses.replace(jpegs.splits["test"], shards=(shard,))
    write_manifest(dataclasses.replace(jpegs, directory=made, splits={**jpegs.splits, "test": split}))
    return load_manifest(folder, jpegs.dataset)


@pytest.mark.parametrize(
    "content",
    [
        lambda jpeg: jpeg[: len(jpeg) // 2],
        lambda jpeg: b"no picture",
        lambda jpeg: b"",
        lambda jpeg: jpeg_of(np.zeros((SIDE, SIDE + 1, 3), np.uint8)),
    ],
    ids=["cut", "other", "empty", "shape"],
)
def test_a_broken_jpeg_is_reported_like_a_damaged_shard(jpegs, tmp_path, content):
    manifest = _broken(jpegs, tmp_path, content)
    name = manifest.splits["test"].shards[0].file
    readers = [
        lambda: load_split(manifest, "test"),
        lambda: read_rows(manifest, "test", np.array([3])),
        lambda: read_shard(manifest, manifest.splits["test"].shards[0]),
    ]
    for read in readers:
        with pytest.raises(InputError, match=f"damaged or missing in .*{name}.*labkit data prepare"):
            read()
    assert read_rows(manifest, "test", np.array([2]))[1].tolist() == [2]
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(eval_dataset(manifest, "test", global_batch_size=8))


def test_a_derived_data_set_keeps_the_pixels_bit_by_bit(jpegs, tmp_path):
    images, labels = load_split(jpegs, "train")
    made = write_derived(jpegs, tmp_path, {"train": (images[:9], labels[:9])})
    assert made.image_format == "pixels"
    np.testing.assert_array_equal(load_split(made, "train")[0], images[:9])
