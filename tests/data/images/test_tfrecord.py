"""Shards written with NumPy are those that TensorFlow writes."""

import numpy as np
import pytest

from labkit.data import records
from labkit.data.images.tfrecord import masked_checksums, serialize, write_shard
from labkit.data.step_batch import shards


@pytest.mark.parametrize("shape", [(), (3,)])
def test_shards_are_those_of_tensorflow(shape, tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (600, 5, 7, 3), np.uint8)
    labels = generator.integers(0, 2 if shape else 10_000, (600, *shape))
    ours = write_shard(tmp_path / "train-00000-of-00001.tfrecord", iter(images), labels, 16_300)
    content = (tmp_path / ours.file).read_bytes()
    theirs = records.write_shard(tmp_path / ours.file, images, labels, 16_300)
    assert ours == theirs and content == (tmp_path / ours.file).read_bytes()


def test_images_of_any_length_are_written_as_tensorflow_does(tmp_path):
    import tensorflow as tf

    generator = np.random.default_rng(1)
    images = [generator.bytes(length) for length in (1, 63, 64, 65, 127, 128, 5_000, 70_000)]
    shard = write_shard(tmp_path / "test-00000-of-00001.tfrecord", images, np.arange(8), 0)
    found = [
        tf.train.Example.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(tmp_path / shard.file))  # checks the checksums
    ]
    assert [example.features.feature["image"].bytes_list.value[0] for example in found] == images
    assert [example.features.feature["label"].int64_list.value[0] for example in found] == list(range(8))
    for index, example in enumerate(found):
        assert example.SerializeToString(deterministic=True) == serialize(images[index], [index], index)


def test_checksums_are_those_of_the_reader():
    generator = np.random.default_rng(2)
    texts = [generator.bytes(length) for length in [*range(4, 140), 3_000]]
    assert masked_checksums(texts) == shards.masked_checksums(texts)


def test_a_failing_source_leaves_no_file(tmp_path):
    def images():
        yield b"image"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_shard(tmp_path / "train-00000-of-00001.tfrecord", images(), np.arange(2), 0)
    assert not list(tmp_path.iterdir())
