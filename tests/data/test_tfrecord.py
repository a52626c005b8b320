"""TFRecord shards contain exactly what was written, and get their final name only when complete."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from labkit.data.manifest import FORMAT_VERSION, file_sha256
from labkit.data.records import parse_batch, write_derived
from labkit.data.shards import load_split, read_shard
from labkit.data.tfrecord import masked_checksums, payload, write_shard
from labkit.errors import InputError
from tests.tiny import prepare_tiny

NAME = "train-00000-of-00001.tfrecord"


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(0, 5), st.just(2), st.just(3), st.just(3))),
    st.data(),
    st.sampled_from(["class", "classes", "numbers"]),
)
def test_tensorflow_reads_what_was_written(tmp_path_factory, images, data, targets):
    values = {
        "class": st.integers(0, 2**31 - 1),
        "classes": st.integers(0, 1),
        "numbers": st.floats(width=32, allow_nan=False),
    }[targets]
    target_shape = () if targets == "class" else (4,)
    dtype = np.float32 if targets == "numbers" else np.int32
    labels = data.draw(hnp.arrays(dtype, (len(images), *target_shape), elements=values))
    first = data.draw(st.integers(0, 2**40))
    path = tmp_path_factory.mktemp("records") / NAME
    shard = write_shard(path, images, labels, first)
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())  # which checks the checksums
    if len(images):
        manifest = SimpleNamespace(
            image_shape=images.shape[1:],
            image_format="pixels",
            targets=targets,
            target_shape=target_shape,
            target_dtype=labels.dtype.name,
        )
        found = parse_batch(tf.constant(records), manifest)
        assert found[1].dtype.name == labels.dtype.name
        np.testing.assert_array_equal(found[0], images)
        np.testing.assert_array_equal(found[1], labels)
        np.testing.assert_array_equal(found[2], first + np.arange(len(images)))
    assert shard.count == len(images) == len(records)
    assert (shard.bytes, shard.sha256) == (path.stat().st_size, file_sha256(path))


def test_the_bytes_of_a_record_stay_the_same():
    """Whoever changes them has to change manifest.FORMAT_VERSION as well."""
    assert payload(b"x", 5, 258) == bytes.fromhex("02010000000000000500000078")
    assert payload(b"x", np.array([0, 1, 1]), 1) == bytes.fromhex("010000000000000000010178")
    assert payload(b"x", np.array([1, -2], np.float32), 1) == bytes.fromhex(
        "01000000000000000000803f000000c078"
    )
    assert FORMAT_VERSION == 3


@pytest.mark.parametrize("more", [-40, -1, 1])
def test_another_number_of_records_than_in_the_manifest_is_refused(tmp_path, jpegs, more):
    for manifest in (prepare_tiny(tmp_path), jpegs):
        [shard] = manifest.splits["test"].shards
        other = dataclasses.replace(shard, count=shard.count + more)
        with pytest.raises(InputError, match=f"damaged or missing in .*{shard.file}"):
            read_shard(manifest, other)


def test_rows_in_another_order_are_not_loaded(tmp_path):
    """As after a shard of another data set with its checksum was written into the manifest."""
    manifest = prepare_tiny(tmp_path / "a")
    images, labels = load_split(manifest, "train")
    made = write_derived(manifest, tmp_path / "b", {"train": (images, labels)})
    shard = made.splits["train"].shards[0]
    moved = write_shard(made.shard_path(shard), images, labels, 1)
    split = dataclasses.replace(made.splits["train"], shards=(moved,))
    made = dataclasses.replace(made, splits={"train": split})
    with pytest.raises(InputError, match="records out of order"):
        load_split(made, "train")


def test_checksums_of_records_of_any_length_are_those_that_tensorflow_writes(tmp_path):
    generator = np.random.default_rng(0)
    records = [generator.bytes(length) for length in (0, 1, 2, 3, 4, 5, 31, 32, 1000, 7, 1000)]
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    content, position = Path(path).read_bytes(), 0
    for record, checksum in zip(records, masked_checksums(records), strict=True):
        end = position + 12 + len(record)
        assert int.from_bytes(content[end : end + 4], "little") == checksum
        position = end + 4
    assert masked_checksums([]) == []
