"""Preparing is atomic, does no work twice, and repairs only damaged shards."""

import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.cifar10.archives import source_sha256
from labkit.data.manifest import MANIFEST_NAME, find_manifest, load_manifest, verify_shards
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError

OPTIONS = {"examples_per_shard": 17, "validation_size": 13}


@pytest.fixture
def archive(fake_cifar, tmp_path):
    """The small data set in the Python layout."""
    return fake_cifar.archive(tmp_path / "source" / "cifar.tar.gz", "python")


def _state(directory: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every file; rewriting a file changes both."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()}


def test_every_layout_gives_the_same_data_set(fake_cifar, tmp_path, prepared):
    for layout in ("python", "binary"):
        for kind in ("archive", "folder"):
            home = tmp_path / layout / kind
            source = (
                fake_cifar.archive(home / "a.tar.gz", layout)
                if kind == "archive"
                else fake_cifar.folder(home, layout)
            )
            manifest = prepare("cifar10", home / "data", archive=source, **OPTIONS).manifest
            assert manifest.checksum == prepared.checksum
            assert manifest.source["kind"] == kind and manifest.source["location"] == str(source)
            assert manifest.source["matches_published"] is {"archive": False, "folder": None}[kind]


def test_a_differing_checksum_is_reported_and_recorded_not_fatal(tmp_path, archive, monkeypatch):
    result = prepare("cifar10", tmp_path / "1", archive=archive, **OPTIONS)
    assert any("not one of the published" in line for line in result.messages)
    sha256 = source_sha256(archive)
    monkeypatch.setitem(
        sources.PUBLISHED, "cifar-10-python.tar.gz", sources.Published("http://x/", sha256, 1)
    )
    result = prepare("cifar10", tmp_path / "2", archive=archive, **OPTIONS)
    assert result.manifest.source["matches_published"] is True
    assert not any("published" in line for line in result.messages)


def test_a_second_call_writes_nothing(tmp_path, archive):
    first = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    before = _state(tmp_path / "data/cifar10")
    for options in ({**OPTIONS, "archive": archive}, OPTIONS, {}):
        again = prepare("cifar10", tmp_path / "data", **options)
        assert not again.did_work and again.manifest == first.manifest
    assert first.did_work and _state(tmp_path / "data/cifar10") == before


def test_a_second_call_loads_neither_tensorflow_nor_the_network(prepared):
    code = (
        "import sys; from labkit.data.prepare import prepare;"
        f"r = prepare('cifar10', {str(prepared.directory.parent)!r});"
        "sys.exit(r.did_work or any(m in sys.modules for m in ('tensorflow', 'requests', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_default_validation_size_is_a_tenth_and_later_calls_keep_the_size(tmp_path, archive):
    def counts(result):
        return {name: split.count for name, split in result.manifest.splits.items()}

    first = prepare("cifar10", tmp_path / "data", archive=archive)
    assert counts(first) == {"train": 90, "validation": 10, "test": 33}
    without = prepare("cifar10", tmp_path / "data", validation_size=0)
    assert counts(without) == {"train": 100, "test": 33} and without.manifest.count("validation") == 0
    assert any("validation examples 0 instead of 10" in line for line in without.messages)
    assert not list((tmp_path / "data/cifar10").glob("validation-*"))
    kept = prepare("cifar10", tmp_path / "data")
    assert not kept.did_work and kept.manifest == without.manifest


def test_splitting_again_keeps_every_example_once(tmp_path, archive, fake_cifar):
    prepare("cifar10", tmp_path / "data", archive=archive, validation_size=10)
    manifest = prepare("cifar10", tmp_path / "data", validation_size=30).manifest
    images = np.concatenate([load_split(manifest, name)[0] for name in ("train", "validation")])
    assert sorted(x.tobytes() for x in images) == sorted(x.tobytes() for x in fake_cifar.train_images)
    assert (np.bincount(load_split(manifest, "validation")[1]) == 3).all()


def test_another_archive_replaces_the_data(tmp_path, archive, fake_cifar):
    first = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    folder = fake_cifar.folder(tmp_path / "other", "binary")
    batch = bytearray((folder / "data_batch_1.bin").read_bytes())
    batch[100] ^= 1
    (folder / "data_batch_1.bin").write_bytes(batch)
    second = prepare("cifar10", tmp_path / "data", archive=folder, **OPTIONS)
    assert second.did_work and second.manifest.checksum != first.manifest.checksum


class _Killed(BaseException):
    """Simulates the end of the process: no handler catches it."""


def _kill_at(monkeypatch, name, count):
    """Simulate that the process ends at the `count`-th call of os.`name` within the data set's folder."""
    real, calls = getattr(os, name), []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == count:
            raise _Killed
        return real(*arguments)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_an_interrupted_call_is_completed_by_the_next(tmp_path, archive, monkeypatch, prepared, call):
    with monkeypatch.context() as patch:
        calls = _kill_at(patch, call, -1)
        prepare("cifar10", tmp_path / "all", archive=archive, **OPTIONS)
    assert len(calls) > 8  # each shard and the manifest
    for point in range(1, len(calls) + 1):
        data_dir = tmp_path / str(point)
        with monkeypatch.context() as patch, pytest.raises(_Killed):
            _kill_at(patch, call, point)
            prepare("cifar10", data_dir, archive=archive, **OPTIONS)
        assert find_manifest(data_dir, "cifar10") is None
        assert prepare("cifar10", data_dir, archive=archive, **OPTIONS).manifest.checksum == prepared.checksum
        _assert_only_the_data_set(data_dir)


def _assert_only_the_data_set(data_dir):
    manifest = load_manifest(data_dir, "cifar10")
    shards = {shard.file for split in manifest.splits.values() for shard in split.shards}
    assert {path.name for path in manifest.directory.iterdir()} == shards | {"manifest.json", ".lock"}
    assert verify_shards(manifest) == []


def test_after_an_interrupted_split_the_next_call_knows_the_source(tmp_path, archive, monkeypatch):
    with monkeypatch.context() as patch:
        prepare("cifar10", tmp_path / "all", archive=archive, **OPTIONS)
        calls = _kill_at(patch, "replace", -1)
        prepare("cifar10", tmp_path / "all", validation_size=20, examples_per_shard=17)
    for point in range(1, len(calls) + 1):
        data_dir = tmp_path / str(point)
        prepare("cifar10", data_dir, archive=archive, **OPTIONS)
        with monkeypatch.context() as patch, pytest.raises(_Killed):
            _kill_at(patch, "replace", point)
            prepare("cifar10", data_dir, validation_size=20, examples_per_shard=17)
        found = find_manifest(data_dir, "cifar10")
        assert found is None or verify_shards(found) == []  # never a mixture
        manifest = prepare("cifar10", data_dir, validation_size=20, examples_per_shard=17).manifest
        assert manifest.checksum == load_manifest(tmp_path / "all", "cifar10").checksum
        _assert_only_the_data_set(data_dir)


def test_data_of_another_version_are_prepared_again_as_they_were(tmp_path, archive):
    first = prepare("cifar10", tmp_path, archive=archive, validation_size=4, classes=["cat", "dog"]).manifest
    path = first.directory / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    said = []
    assert prepare("cifar10", tmp_path, progress=said.append).manifest == first
    assert "written by another version of labkit" in said[0]
    _assert_only_the_data_set(tmp_path)


_KILLED_AFTER = """
import os, signal, sys
from labkit.data.prepare import prepare
real, left = os.replace, [int(sys.argv[3])]
def replace(*names):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*names)
os.replace = replace
result = prepare("cifar10", sys.argv[1], archive=sys.argv[2], validation_size=13, examples_per_shard=17)
print(result.did_work, result.manifest.checksum)
"""


def _start(data_dir, archive, kill_at=-1):
    command = [sys.executable, "-c", _KILLED_AFTER, str(data_dir), str(archive), str(kill_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_process_leaves_no_lock_and_no_half_data_set(tmp_path, archive, prepared):
    process = _start(tmp_path / "data", archive, kill_at=4)
    assert process.communicate(timeout=120) == ("", None) and process.returncode == -signal.SIGKILL
    assert find_manifest(tmp_path / "data", "cifar10") is None
    assert len(list((tmp_path / "data/cifar10").glob("*.tfrecord"))) == 3
    result = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    assert result.manifest.checksum == prepared.checksum
    _assert_only_the_data_set(tmp_path / "data")


@pytest.mark.slow
def test_only_one_of_concurrent_calls_does_the_work(tmp_path, archive, prepared):
    processes = [_start(tmp_path / "data", archive) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert sorted(did_work for did_work, _ in outputs) == ["False", "False", "True"]
    assert {checksum for _, checksum in outputs} == {prepared.checksum}


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_only_damaged_shards_are_named_and_rebuilt(tmp_path, archive, damage):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    damaged = [manifest.splits["train"].shards[2], manifest.splits["test"].shards[1]]
    for shard in damaged:
        path = manifest.shard_path(shard)
        content = path.read_bytes()
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes(content[:-9] if damage == "cut" else content[:-9] + b"?" + content[-8:])
    before = _state(manifest.directory)
    result = prepare("cifar10", tmp_path / "data")
    after = _state(manifest.directory)
    names = {shard.file for shard in damaged}
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []
    assert all(name in result.messages[0] for name in names)
    assert {name for name in after if after[name] != before.get(name)} == names


def test_a_damaged_shard_without_its_source_is_refused_naming_both(tmp_path, archive):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    shard = manifest.splits["train"].shards[0]
    manifest.shard_path(shard).unlink()
    moved = archive.rename(tmp_path / "moved.tar.gz")
    with pytest.raises(InputError, match=f"{shard.file}.*{archive}.*--archive PATH"):
        prepare("cifar10", tmp_path / "data")
    assert prepare("cifar10", tmp_path / "data", archive=moved).did_work
    assert verify_shards(manifest) == []


def test_a_damaged_shard_is_not_rebuilt_from_a_changed_source(tmp_path, archive, fake_cifar):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    shard = manifest.splits["train"].shards[0]
    manifest.shard_path(shard).unlink()
    images = fake_cifar.train_images ^ np.uint8(1)
    type(fake_cifar)(images, *list(vars(fake_cifar).values())[1:]).archive(archive, "python")
    with pytest.raises(InputError, match=f"{shard.file} cannot be rebuilt"):
        prepare("cifar10", tmp_path / "data")


def test_a_damaged_shard_is_rebuilt_from_the_same_images_packed_again(tmp_path, archive, fake_cifar):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    manifest.shard_path(manifest.splits["train"].shards[0]).unlink()
    fake_cifar.archive(archive, "binary")
    result = prepare("cifar10", tmp_path / "data")
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []


def test_a_damaged_manifest_is_replaced(tmp_path, archive, prepared):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    (manifest.directory / "manifest.json").write_text("{")
    result = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    assert result.did_work and result.manifest.checksum == prepared.checksum


def test_shapes_are_generated_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setattr(
        shapes, "generate", lambda seed, **kind: shapes_generate(seed, train_count=200, test_count=50, **kind)
    )
    manifest = prepare("shapes", tmp_path / "data").manifest
    assert [manifest.count(name) for name in ("train", "validation", "test")] == [180, 20, 50]
    assert manifest.source["kind"] == "generated" and manifest.classes == shapes.CLASSES
    manifest.shard_path(manifest.splits["test"].shards[0]).unlink()
    assert prepare("shapes", tmp_path / "data").did_work and verify_shards(manifest) == []
    assert prepare("shapes", tmp_path / "data", seed=1).manifest.checksum != manifest.checksum


shapes_generate = shapes.generate


def test_a_downloaded_archive_is_cached_and_used_for_repairs(tmp_path, archive, monkeypatch, prepared):
    fetched = []

    def download(folder, **options):
        fetched.append(options["url"])
        return archive

    monkeypatch.setattr(sources, "download", download)
    manifest = prepare("cifar10", tmp_path / "data", url="http://mirror/x.tar.gz", **OPTIONS).manifest
    assert manifest.source["kind"] == "download" and manifest.source["location"] == "http://mirror/x.tar.gz"
    assert manifest.checksum == prepared.checksum
    manifest.shard_path(manifest.splits["train"].shards[0]).unlink()
    assert prepare("cifar10", tmp_path / "data").did_work
    assert fetched == ["http://mirror/x.tar.gz"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "mnist"}, "'mnist'.*cifar10, shapes"),
        ({"validation_size": -1}, "-1 is negative"),
        ({"validation_size": 100}, "100 leaves nothing.*less than 100"),
        ({"validation_size": 50_000}, "50000 leaves nothing"),
        ({"seed": -1}, "seed -1"),
        ({"timeout": 0}, "timeout 0"),
        ({"examples_per_shard": 0}, "0 examples per shard"),
        ({"archive": "/no/such/archive.tar.gz"}, "does not exist"),
        ({"dataset": "shapes"}, "generated and has no source"),
        ({"archive": "/dev/zero"}, "/dev/zero is neither a file nor a folder"),
        ({"archive": "/tmp/" + "x" * 300}, "name too long; give another --archive"),
        ({"archive": None, "url": ""}, "--url is '', not a download address"),
        ({"archive": None, "url": "http://[::1"}, "not a download address"),
        ({"archive": None, "url": "http://host:port/"}, "not a download address"),
        ({"archive": None, "url": "ftp://host/a.tar.gz"}, "not a download address"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(tmp_path, archive, options, message):
    arguments = {"dataset": "cifar10", "archive": archive, **options}
    with pytest.raises(InputError, match=message) as caught:
        prepare(data_dir=tmp_path / "new" / "data", **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_an_archive_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="no tar archive"):
        prepare("cifar10", tmp_path / "new" / "data", archive=tmp_path / "a.tar.gz")
    assert not (tmp_path / "new").exists()


def test_bad_input_leaves_a_prepared_data_set_alone(tmp_path, archive):
    prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    before = _state(tmp_path / "data/cifar10")
    with pytest.raises(InputError):
        prepare("cifar10", tmp_path / "data", validation_size=100)
    assert _state(tmp_path / "data/cifar10") == before


def test_too_little_disk_is_found_before_anything_is_written(tmp_path, archive, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 1000, 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(InputError, match="0 MB free.*--data-dir"):
        prepare("cifar10", tmp_path / "data", archive=archive)
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path, archive):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to.*--data-dir"):
        prepare("cifar10", tmp_path / "file" / "data", archive=archive)


def test_an_inaccessible_data_dir_is_an_input_error(tmp_path, archive, monkeypatch):
    with pytest.raises(InputError, match="name too long; choose another --data-dir"):
        prepare("cifar10", tmp_path / ("x" * 300), archive=archive)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # root may search every folder
    with pytest.raises(InputError, match="Permission denied; choose another --data-dir"):
        prepare("shapes", tmp_path / "data")


def test_a_changed_statistic_is_detected_and_prepared_again(tmp_path, archive, prepared):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    path = manifest.directory / "manifest.json"
    path.write_text(path.read_text().replace(str(manifest.channel_mean[0]), "0.25"))
    with pytest.raises(InputError, match="damaged"):
        load_manifest(tmp_path / "data", "cifar10")
    again = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS)
    assert again.did_work and again.manifest == manifest and manifest.checksum == prepared.checksum


def test_a_disk_that_fills_up_is_an_input_error(tmp_path, archive, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        prepare("cifar10", tmp_path / "data", archive=archive)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif("LABKIT_CIFAR10" not in os.environ, reason="LABKIT_CIFAR10 names no copy of CIFAR-10")
def test_real_cifar10_gives_45000_5000_10000_from_either_layout(tmp_path):
    home = Path(os.environ["LABKIT_CIFAR10"])
    python = prepare("cifar10", tmp_path / "data", archive=home / "cifar-10-python.tar.gz").manifest
    binary = prepare("cifar10", tmp_path / "data", archive=home / "cifar-10-batches-bin").manifest
    assert python.checksum == binary.checksum
    assert [python.count(name) for name in ("train", "validation", "test")] == [45_000, 5_000, 10_000]
    assert (np.bincount(load_split(python, "validation")[1]) == 500).all()
    whole = prepare("cifar10", tmp_path / "data", validation_size=0).manifest
    assert whole.count("train") == 50_000
    np.testing.assert_allclose(whole.channel_mean, [0.4914, 0.4822, 0.4465], atol=0.002)
