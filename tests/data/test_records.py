"""TFRecord shards contain exactly what was written, and get their final name only when complete."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from labkit.data.manifest import file_sha256
from labkit.data.records import read_records, write_shard

NAME = "train-00000-of-00001.tfrecord"


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 5), st.just(2), st.just(3), st.just(3))), st.data())
def test_round_trip_is_exact(tmp_path_factory, images, data):
    labels = data.draw(hnp.arrays(np.int32, len(images), elements=st.integers(0, 9)))
    first = data.draw(st.integers(0, 2**40))
    path = tmp_path_factory.mktemp("records") / NAME
    shard = write_shard(path, images, labels, first)
    read_images, read_labels, indices = read_records([str(path)], len(images), images.shape[1:])
    np.testing.assert_array_equal(read_images, images)
    np.testing.assert_array_equal(read_labels, labels)
    np.testing.assert_array_equal(indices, first + np.arange(len(images)))
    assert (shard.count, shard.bytes, shard.sha256) == (len(images), path.stat().st_size, file_sha256(path))


def _example(count=40):
    generator = np.random.default_rng(3)
    return generator.integers(0, 256, (count, 32, 32, 3), np.uint8), generator.integers(0, 10, count)


def test_the_bytes_depend_only_on_the_content(tmp_path):
    images, labels = _example()
    (tmp_path / "a").mkdir()
    assert write_shard(tmp_path / NAME, images, labels, 5) == write_shard(
        tmp_path / "a" / NAME, images, labels, 5
    )


def test_an_unfinished_shard_does_not_have_its_final_name(tmp_path, monkeypatch):
    images, labels = _example()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / NAME, images, labels, 0)
    assert not (tmp_path / NAME).exists()


def test_a_wrong_count_is_refused(tmp_path):
    images, labels = _example()
    write_shard(tmp_path / NAME, images, labels, 0)
    for count in (39, 41):
        with pytest.raises(ValueError, match="records"):
            read_records([str(tmp_path / NAME)], count, (32, 32, 3))


def test_a_flipped_bit_and_a_cut_are_found(tmp_path):
    images, labels = _example()
    path = tmp_path / NAME
    write_shard(path, images, labels, 0)
    whole = path.read_bytes()
    for content in (whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], whole[:-7]):
        path.write_bytes(content)
        with pytest.raises(tf.errors.DataLossError):
            read_records([str(path)], len(images), (32, 32, 3))
