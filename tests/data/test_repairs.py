"""Whatever a data set is made of: no work is done twice, and what was interrupted or damaged is completed."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labkit.data.manifest import Manifest, find_manifest, load_manifest, verify_shards
from labkit.data.prepare import prepare
from labkit.data.request import PrepareResult
from labkit.errors import InputError
from tests.data.kills import counted_calls, file_states, killed_at


@dataclass
class Made:
    """A data set that a test prepares.

    Attributes:
        name: of the data set.
        options: of the first call, which name its source.
        change: puts other images in the place of its source.
        lost: what is said where a shard can't be rebuilt because the source is gone.
    """

    name: str
    options: dict[str, Any]
    change: Callable[[], None]
    lost: str

    def first(self, data_dir: Path, **options: Any) -> PrepareResult:
        dataset = self.name if "archive" in self.options else None
        return prepare(dataset, data_dir, **{**self.options, **options})

    def later(self, data_dir: Path, **options: Any) -> PrepareResult:
        return prepare(self.name, data_dir, **options)

    def is_whole(self, manifest: Manifest) -> None:
        """Check that its folder holds the shards and what belongs to them, and nothing else."""
        shards = {shard.file for split in manifest.splits.values() for shard in split.shards}
        own = {"manifest.json", ".lock"} | ({"files.json"} if "images" in self.options else set())
        assert {path.name for path in manifest.directory.iterdir()} == shards | own
        assert verify_shards(manifest) == []


@pytest.fixture(params=["archive", "pictures", "arrays"])
def made(request, fake_cifar, pets, make_pixels, tmp_path) -> Made:
    if request.param == "pictures":

        def redraw() -> None:
            Image.fromarray(make_pixels(999)).save(pets / "cat" / "0.png")

        return Made("pets", {"images": pets, "examples_per_shard": 4}, redraw, "does not exist")
    if request.param == "arrays":
        file = tmp_path / "arrays.npz"
        arrays = {"x_train": fake_cifar.train_images, "y_train": fake_cifar.train_labels}
        np.savez(file, **arrays)

        def invert() -> None:
            np.savez(file, x_train=255 - arrays["x_train"], y_train=arrays["y_train"])

        return Made("arrays", {"npz": file, "examples_per_shard": 15}, invert, "does not exist; give --npz")
    archive = fake_cifar.archive(tmp_path / "source" / "cifar.tar.gz", "python")

    def repack() -> None:
        other = type(fake_cifar)(255 - fake_cifar.train_images, *list(vars(fake_cifar).values())[1:])
        other.archive(archive, "python")

    options = {"archive": archive, "examples_per_shard": 17, "validation_size": 13}
    return Made("cifar10", options, repack, f"{archive}.*--archive PATH")


def test_a_second_and_a_refused_call_write_nothing(made, tmp_path):
    first = made.first(tmp_path / "data")
    before = file_states(first.manifest.directory)
    for call in (made.first, made.later):
        again = call(tmp_path / "data")
        assert not again.did_work and again.manifest == first.manifest
    with pytest.raises(InputError):
        made.later(tmp_path / "data", validation_size=10**6)
    assert first.did_work and file_states(first.manifest.directory) == before


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_an_interrupted_call_is_completed_by_the_next(made, tmp_path, call):
    with counted_calls(call) as calls:
        whole = made.first(tmp_path / "all").manifest
    assert len(calls) > 8  # each shard and the manifest
    for point in range(1, len(calls) + 1):
        data_dir, said = tmp_path / str(point), []
        with killed_at(point, call):
            made.first(data_dir)
        assert find_manifest(data_dir, made.name) is None
        before = file_states(data_dir / made.name) if (data_dir / made.name).exists() else {}
        assert made.first(data_dir, progress=said.append).manifest.checksum == whole.checksum
        after = file_states(data_dir / made.name)
        made.is_whole(load_manifest(data_dir, made.name))
        if made.name == "pets" and call == "replace":  # pictures take long: what was written is kept
            kept = [name for name in after if name.endswith("record") and after[name] == before.get(name)]
            shards = sum(len(split.shards) for split in whole.splits.values())
            assert len(kept) == min(point - 1, shards)
            assert any("already written" in line for line in said) == (point > 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_only_damaged_shards_are_named_and_rebuilt(made, tmp_path, damage):
    manifest = made.first(tmp_path / "data").manifest
    damaged = [manifest.splits["train"].shards[2], manifest.splits["test"].shards[0]]
    for shard in damaged:
        path = manifest.shard_path(shard)
        content = path.read_bytes()
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes(content[:-9] if damage == "cut" else content[:-9] + b"?" + content[-8:])
    before = file_states(manifest.directory)
    result = made.later(tmp_path / "data")
    after = file_states(manifest.directory)
    names = {shard.file for shard in damaged}
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []
    assert all(name in " ".join(result.messages) for name in names)
    assert {name for name in after if after[name] != before.get(name)} == names


@pytest.mark.parametrize("source", ["changed", "gone"])
def test_a_damaged_shard_is_not_rebuilt_from_another_source_or_none(made, tmp_path, source):
    manifest = made.first(tmp_path / "data").manifest
    shard = manifest.splits["train"].shards[0]
    manifest.shard_path(shard).unlink()
    path = next(made.options[source] for source in ("images", "npz", "archive") if source in made.options)
    if source == "changed":
        made.change()
        words = f"{shard.file} cannot be rebuilt"
    else:
        path.rename(tmp_path / "moved")
        words = made.lost
    with pytest.raises(InputError, match=words):
        made.later(tmp_path / "data")
    if source == "gone":
        (tmp_path / "moved").rename(path)
        assert made.later(tmp_path / "data").did_work and verify_shards(manifest) == []


def test_data_of_another_version_are_prepared_again_as_they_were(made, tmp_path):
    del made.options["examples_per_shard"]  # the one thing that a manifest doesn't tell
    first = made.first(tmp_path / "data", validation_size=4, train_examples=12).manifest
    path = first.directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    said = []
    assert made.later(tmp_path / "data", progress=said.append).manifest == first
    assert any("written by another version of labkit" in line for line in said)
    made.is_whole(first)


def test_a_damaged_manifest_is_replaced_where_the_source_is_named(made, tmp_path):
    first = made.first(tmp_path / "data").manifest
    (first.directory / "manifest.json").write_text("{")
    if made.name != "cifar10":
        with pytest.raises(InputError, match=f"{made.name!r} is damaged .* give its pictures with --images"):
            made.later(tmp_path / "data")
    result = made.first(tmp_path / "data")
    assert result.did_work and result.manifest == first


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_one_sentence(made, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="^[^\n]*cannot be written to[^\n]*--data-dir$"):
        made.first(tmp_path / "file" / "data")
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="^[^\n]*cannot be written to: .*No space left[^\n]*$"):
            made.first(tmp_path / "data")
    said = []
    assert made.first(tmp_path / "data", progress=said.append).did_work
    assert made.name != "pets" or any(line.startswith("going on: 2 of ") for line in said)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)
    )
    with pytest.raises(InputError, match="--data-dir .*: 0 MiB free"):
        made.first(tmp_path / "new")
    assert not (tmp_path / "new").exists()
