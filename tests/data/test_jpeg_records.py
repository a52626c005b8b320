"""Records that hold JPEGs give the pixels that every JPEG decoder gives, on every way to them."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.data.batch_of_step import batch_of_step
from labkit.data.inputs import InputShare, augmentation_of
from labkit.data.manifest import load_manifest, write_manifest
from labkit.data.network_input import standardize
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.data.records import parse_batch, write_derived
from labkit.data.shards import decoded, load_split, read_labels, read_rows, read_shard
from labkit.data.tfrecord import payload, write_shard
from labkit.errors import InputError
from tests.jpegs import jpeg_of, prepare_jpegs

SIDE = 72


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """180 train, 20 validation and 40 test images of 72 pixels."""
    return prepare_jpegs(tmp_path_factory.mktemp("jpegs"), SIDE)


@pytest.mark.parametrize("quality", [30, 95, 100])
@pytest.mark.parametrize("side", [1, 8, 65])
def test_tensorflow_and_pillow_decode_the_same_pixels(quality, side):
    noise = np.random.default_rng(side).integers(0, 256, (5, side, side, 3), np.uint8)
    smooth = np.linspace(0, 255, noise.size).reshape(noise.shape).astype(np.uint8)
    contents = [jpeg_of(image, quality=quality) for image in (*noise, *smooth)]
    shape = (side, side, 3)
    payloads = tf.constant([payload(content, 9 - row, row) for row, content in enumerate(contents)])
    images, labels, index = parse_batch(payloads, shape, image_format="jpeg")
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


@pytest.mark.parametrize("path", ["memory", "streaming"])
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


def _train_images(manifest, path, start=0, stop=30, share=None):
    data = Config.from_flat({"random_resized_crop": 0.25}).data
    dataset = train_dataset(
        manifest,
        global_batch_size=12,
        seed=1,
        start_step=start,
        stop_step=stop,
        augmentation=augmentation_of(data),
        standardized=False,
        input_path=path,
        share=share or InputShare(),
        with_index=True,
    )
    return [tuple(part.numpy() for part in batch) for batch in dataset]


def test_both_input_paths_crop_an_example_the_same_way(jpegs):
    def epoch(path):  # the second one: 15 steps of 12
        pairs = [
            pair
            for images, _, index in _train_images(jpegs, path, 15)
            for pair in zip(index, images, strict=True)
        ]
        return {row: image.tobytes() for row, image in pairs}

    assert epoch("memory") == epoch("streaming")
    assert len(epoch("memory")) == 180


@pytest.mark.parametrize("path", ["memory", "streaming"])
def test_replicas_and_a_resumed_run_get_the_same_images(jpegs, path):
    whole = _train_images(jpegs, path)
    later = _train_images(jpegs, path, 13, 17)
    halves = [_train_images(jpegs, path, 13, 17, InputShare(2, replica, 1)) for replica in range(2)]
    for step in range(4):
        for part in range(3):
            np.testing.assert_array_equal(later[step][part], whole[13 + step][part])
            joined = np.concatenate([half[step][part] for half in halves])
            np.testing.assert_array_equal(joined, whole[13 + step][part])


def test_evaluation_counts_each_image_once(jpegs):
    images, labels = load_split(jpegs, "validation")
    seen = []
    for replica in range(3):
        share = InputShare(3, replica, 1)
        for batch in eval_dataset(jpegs, "validation", global_batch_size=9, share=share):
            pixels, their_labels, index, weight = (part.numpy() for part in batch)
            rows = index[weight == 1]
            seen += rows.tolist()
            np.testing.assert_array_equal(pixels[weight == 1], standardize(images[rows], jpegs))
            np.testing.assert_array_equal(their_labels[weight == 1], labels[rows])
    assert sorted(seen) == list(range(20))


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


@pytest.mark.parametrize("count", [39, 41])
def test_another_number_of_records_than_in_the_manifest_is_refused(jpegs, count):
    shard = dataclasses.replace(jpegs.splits["test"].shards[0], count=count)
    with pytest.raises(InputError, match=f"damaged or missing in .*{shard.file}"):
        read_shard(jpegs, shard)


def test_an_empty_shard_has_no_bytes(jpegs):
    shard = dataclasses.replace(jpegs.splits["test"].shards[0], count=0)
    with pytest.raises(InputError, match="it does not hold 0 records"):
        read_shard(jpegs, shard)


def test_a_derived_data_set_keeps_the_pixels_bit_by_bit(jpegs, tmp_path):
    images, labels = load_split(jpegs, "train")
    made = write_derived(jpegs, tmp_path, {"train": (images[:9], labels[:9])})
    assert made.image_format == "pixels"
    np.testing.assert_array_equal(load_split(made, "train")[0], images[:9])
