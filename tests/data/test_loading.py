"""Splits are read completely and in order, or refused."""

import shutil

import numpy as np
import pytest

from labkit.data.manifest import load_manifest
from labkit.data.shards import load_split
from labkit.errors import InputError


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


def test_an_unknown_split_lists_the_existing_ones(prepared):
    with pytest.raises(InputError, match="train, validation, test"):
        load_split(prepared, "dev")


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "swap"])
def test_a_damaged_shard_is_named(prepared, tmp_path, damage):
    shutil.copytree(prepared.directory, tmp_path / "cifar10")
    manifest = load_manifest(tmp_path, "cifar10")
    first, second = (manifest.shard_path(shard) for shard in manifest.splits["train"].shards[1:3])
    content = first.read_bytes()
    if damage == "flip":
        first.write_bytes(content[:-500] + bytes([content[-500] ^ 4]) + content[-499:])
    elif damage == "cut":
        first.write_bytes(content[:-1])
    elif damage == "remove":
        first.unlink()
    else:  # a valid file, but the content of another shard
        first.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match=f"{first.name}.*labkit data prepare"):
        load_split(manifest, "train")
