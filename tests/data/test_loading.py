"""Splits are read completely and in order, and damage is named."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labkit.config.data import DataConfig
from labkit.data.batch_of_step import batch_of_step
from labkit.data.manifest import Manifest, load_manifest
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.data.shards import SplitImages, load_split, read_rows, read_shard
from labkit.errors import InputError
from tests.fuzzing import damaged_bytes, value_or_line


def test_the_splits_contain_the_source_data(prepared, fake_cifar):
    images, labels = load_split(prepared, "test")
    np.testing.assert_array_equal(images, fake_cifar.test_images)
    np.testing.assert_array_equal(labels, fake_cifar.test_labels)
    train, held_out = (load_split(prepared, name) for name in ("train", "validation"))
    together = sorted(
        x.tobytes() + bytes([y]) for part in (train, held_out) for x, y in zip(*part, strict=True)
    )
    source = zip(fake_cifar.train_images, fake_cifar.train_labels, strict=True)
    assert together == sorted(x.tobytes() + bytes([y]) for x, y in source)
    assert np.bincount(held_out[1], minlength=10).tolist() == [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("index", [None, np.array([7, 3, 11, 0, 5])])
def test_images_that_are_read_when_they_are_indexed_answer_as_an_array_does(prepared, index):
    images, labels = load_split(prepared, "test")
    whole, read = images if index is None else images[index], SplitImages(prepared, "test", index)
    assert read.shape == whole.shape
    for rows in (
        2,
        -1,
        np.int64(0),
        [3, 1],
        np.array([], np.int64),
        slice(1, 4),
        slice(None),
        labels[: len(whole)] > 4,
    ):
        np.testing.assert_array_equal(read[rows], whole[rows])
    with pytest.raises(IndexError):
        read[len(whole)]


def test_an_unknown_split_lists_the_existing_ones(prepared):
    for read in (load_split, lambda *given: eval_dataset(*given, global_batch_size=8)):
        with pytest.raises(InputError, match="no 'dev' split.*train, validation, test"):
            read(prepared, "dev")


def _readings(manifest: Manifest) -> dict[str, Callable[[], Any]]:
    """Return all ways to the training split: those that check a whole shard, and those that check records."""
    rows = np.arange(manifest.count("train"))
    steps = {"global_batch_size": len(rows), "seed": 0, "start_step": 0, "stop_step": 1}

    def first(dataset: Any) -> Any:
        return next(dataset.as_numpy_iterator())

    def batch(path: str) -> Any:
        data = DataConfig(train_batch_size=len(rows), input_path=path)
        return batch_of_step(manifest, data, seed=0, step=1).images

    return {
        "load_split": lambda: load_split(manifest, "train"),
        "read_shard": lambda: [read_shard(manifest, shard) for shard in manifest.splits["train"].shards],
        "memory": lambda: first(train_dataset(manifest, input_path="memory", **steps)),
        "streaming": lambda: first(train_dataset(manifest, input_path="streaming", **steps)),
        "evaluation": lambda: first(eval_dataset(manifest, "train", global_batch_size=len(rows))),
        "records": lambda: read_rows(manifest, "train", rows),
        "batch": lambda: batch("memory"),
    }


@pytest.fixture(scope="module")
def changed(prepared, tmp_path_factory):
    """A copy of the data set, to be damaged, with what a shard held and what each reader gives."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(prepared.directory, folder / "cifar10")
    manifest = load_manifest(folder, "cifar10")
    shard, other = (manifest.shard_path(shard) for shard in manifest.splits["train"].shards[1:3])
    whole = {name: read() for name, read in _readings(manifest).items()}
    return manifest, shard, shard.read_bytes(), other.read_bytes(), whole


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_shard_is_named_by_every_reader_or_gives_the_same_records(changed, data):
    manifest, shard, good, other, whole = changed
    content = data.draw(st.one_of(damaged_bytes(good), st.sampled_from([None, other, b"", good[::-1]])))
    assume(content != good)
    if content is None:
        shard.unlink()
    else:
        shard.write_bytes(content)
    readings = _readings(manifest)
    if content is not None and len(content) == len(good):
        del readings["streaming"]  # which checks sizes first, and the checksums of records as it goes
    try:
        for name, read in readings.items():
            found, line = value_or_line(read)
            if found is None:
                assert f"damaged or missing in {manifest.directory}" in line and shard.name in line
                assert "labkit data prepare" in line
            else:  # what follows the last record concerns only those who read the whole file
                assert name in ("records", "batch"), name
                np.testing.assert_equal(found, whole[name])
    finally:
        shard.write_bytes(good)
