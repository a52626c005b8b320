"""The manifest is read as written, damaged manifests are refused, and damaged shards are found."""

import dataclasses
import json
import shutil

import pytest

from labkit.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    find_manifest,
    load_manifest,
    verify_shards,
    write_manifest,
)
from labkit.errors import InputError


@pytest.fixture
def copy(prepared, tmp_path):
    """A copy of the prepared data set that a test may change."""
    shutil.copytree(prepared.directory, tmp_path / "cifar10")
    return load_manifest(tmp_path, "cifar10")


def test_a_manifest_is_read_as_written(prepared):
    assert Manifest.from_json(prepared.to_json(), prepared.directory) == prepared
    assert load_manifest(prepared.directory.parent, "cifar10") == prepared


def test_counts_and_classes(prepared):
    assert {name: prepared.count(name) for name in ("train", "validation", "test", "other")} == {
        "train": 87,
        "validation": 13,
        "test": 33,
        "other": 0,
    }
    assert prepared.num_classes == 10


def test_the_checksum_ignores_folder_and_source_but_not_content(prepared, copy):
    assert copy.checksum == prepared.checksum
    assert dataclasses.replace(copy, source={}).checksum == prepared.checksum
    assert dataclasses.replace(copy, classes=copy.classes[::-1]).checksum != prepared.checksum
    splits = {**copy.splits, "validation": copy.splits["test"]}
    assert dataclasses.replace(copy, splits=splits).checksum != prepared.checksum


def test_a_missing_data_set_is_refused_with_the_command_to_prepare_it(tmp_path):
    assert find_manifest(tmp_path, "cifar10") is None
    with pytest.raises(InputError, match="labkit data prepare --dataset cifar10 --data-dir"):
        load_manifest(tmp_path, "cifar10")


def _edited(text, **changes):
    return json.dumps({**json.loads(text), **changes})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: _edited(text, format_version=1),
        lambda text: "[" * 100_000,
        lambda text: _edited(text, channel_mean=[0.5, 0.5]),
        lambda text: _edited(text, channel_mean=[0.5, 0.5, None]),
        lambda text: _edited(text, channel_mean=[0.5, 0.5, 10**400]),
        lambda text: _edited(text, channel_mean=[0.5, 0.5, 0.5]),
        lambda text: _edited(text, channel_std=[0.5, 0.5, float("nan")]),
        lambda text: _edited(text, seed=1),
        lambda text: _edited(text, validation_size=12),
        lambda text: _edited(text, classes=["cat", "dog"]),
        lambda text: _edited(text, surprise=1),
        lambda text: text.replace('"count": 17', '"count": 16', 1),
        lambda text: text.replace("train-00000-of", "../../etc/passwd-of", 1),
    ],
)
def test_a_damaged_manifest_is_an_input_error(copy, damage):
    path = copy.directory / MANIFEST_NAME
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match="is damaged.*labkit data prepare"):
        find_manifest(copy.directory.parent, "cifar10")


def _checksummed(manifest, **changes):
    return dataclasses.replace(manifest, **changes).to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channel_std": (0.5, 0.5, 0.0)}, "not positive"),
        ({"channel_std": (0.5, 0.5, float("inf"))}, "not 3 finite numbers"),
        ({"channel_mean": (0.5, 0.5)}, "not 3 finite numbers"),
        ({"image_shape": (32, 32)}, "image shape"),
    ],
)
def test_unusable_statistics_are_refused_even_with_a_matching_checksum(prepared, changes, message):
    with pytest.raises(ValueError, match=message):
        Manifest.from_json(_checksummed(prepared, **changes), prepared.directory)


def test_damaged_and_missing_shards_are_named(copy):
    assert verify_shards(copy) == []
    first, second = copy.splits["train"].shards[:2]
    content = bytearray(copy.shard_path(first).read_bytes())
    content[1000] ^= 1
    copy.shard_path(first).write_bytes(content)
    copy.shard_path(second).unlink()
    assert verify_shards(copy) == [first.file, second.file]
    assert verify_shards(copy, ["test"]) == []


def test_an_interrupted_write_leaves_the_old_manifest(copy, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_manifest(dataclasses.replace(copy, seed=9))
    assert load_manifest(copy.directory.parent, "cifar10") == copy
