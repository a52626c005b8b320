"""Preparing is atomic, does no work twice, and repairs only damaged shards."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from labkit.data import shapes
from labkit.data.cifar10 import sources
from labkit.data.cifar10.archives import CIFAR10
from labkit.data.folder import locked
from labkit.data.manifest import find_manifest, load_manifest, verify_shards
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError
from tests.data.kills import counted_calls, killed_at

OPTIONS = {"examples_per_shard": 17, "validation_size": 13}


@pytest.fixture
def archive(fake_cifar, tmp_path):
    """The small data set in the Python layout."""
    return fake_cifar.archive(tmp_path / "source" / "cifar.tar.gz", "python")


@pytest.mark.parametrize("layout", ["python", "binary"])
@pytest.mark.parametrize("kind", ["archive", "folder"])
def test_every_layout_gives_the_same_data_set(fake_cifar, tmp_path, prepared, layout, kind):
    source = getattr(fake_cifar, kind)(tmp_path / "source", layout)
    manifest = prepare("cifar10", tmp_path / "data", archive=source, **OPTIONS).manifest
    assert manifest.checksum == prepared.checksum
    assert manifest.source["kind"] == kind and manifest.source["location"] == str(source)
    assert manifest.source["matches_published"] is {"archive": False, "folder": None}[kind]


def test_a_differing_checksum_is_reported_and_recorded_not_fatal(tmp_path, archive, monkeypatch):
    result = prepare("cifar10", tmp_path / "1", archive=archive, **OPTIONS)
    assert any("not one of the published" in line for line in result.messages)
    sha256 = CIFAR10.sha256(archive)
    monkeypatch.setitem(
        sources.PUBLISHED, "cifar-10-python.tar.gz", sources.Published("http://x/", sha256, 1, "CIFAR-10")
    )
    result = prepare("cifar10", tmp_path / "2", archive=archive, **OPTIONS)
    assert result.manifest.source["matches_published"] is True
    assert not any("published" in line for line in result.messages)


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


def test_splitting_again_keeps_every_example_once(tmp_path, copy, fake_cifar):
    manifest = prepare("cifar10", tmp_path / "data", validation_size=30).manifest
    images = np.concatenate([load_split(manifest, name)[0] for name in ("train", "validation")])
    assert sorted(x.tobytes() for x in images) == sorted(x.tobytes() for x in fake_cifar.train_images)
    assert (np.bincount(load_split(manifest, "validation")[1]) == 3).all()


def test_another_archive_replaces_the_data(tmp_path, copy, fake_cifar):
    folder = fake_cifar.folder(tmp_path / "other", "binary")
    batch = bytearray((folder / "data_batch_1.bin").read_bytes())
    batch[100] ^= 1
    (folder / "data_batch_1.bin").write_bytes(batch)
    second = prepare("cifar10", tmp_path / "data", archive=folder, **OPTIONS)
    assert second.did_work and second.manifest.checksum != copy.checksum


def _assert_only_the_data_set(data_dir):
    manifest = load_manifest(data_dir, "cifar10")
    shards = {shard.file for split in manifest.splits.values() for shard in split.shards}
    assert {path.name for path in manifest.directory.iterdir()} == shards | {"manifest.json", ".lock"}
    assert verify_shards(manifest) == []


def test_after_an_interrupted_split_the_next_call_knows_the_source(tmp_path, prepared):
    split = {"validation_size": 20, "examples_per_shard": 17}

    def copied(name):
        shutil.copytree(prepared.directory, tmp_path / name / "cifar10")
        return tmp_path / name

    with counted_calls("replace") as calls:
        whole = prepare("cifar10", copied("all"), **split).manifest
    for point in range(1, len(calls) + 1):
        data_dir = copied(str(point))
        with killed_at(point, "replace"):
            prepare("cifar10", data_dir, **split)
        found = find_manifest(data_dir, "cifar10")
        assert found is None or verify_shards(found) == []  # never a mixture
        assert prepare("cifar10", data_dir, **split).manifest.checksum == whole.checksum
        _assert_only_the_data_set(data_dir)


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


def test_a_damaged_shard_is_rebuilt_from_the_same_images_in_another_place_or_packed_again(
    tmp_path, archive, fake_cifar
):
    manifest = prepare("cifar10", tmp_path / "data", archive=archive, **OPTIONS).manifest
    shard = manifest.shard_path(manifest.splits["train"].shards[0])
    shard.unlink()
    fake_cifar.archive(archive, "binary")
    result = prepare("cifar10", tmp_path / "data")
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []
    shard.unlink()
    moved = archive.rename(tmp_path / "moved.tar.gz")
    assert prepare("cifar10", tmp_path / "data", archive=moved, **OPTIONS).did_work
    assert verify_shards(manifest) == []


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
        ({"dataset": "imagenet"}, "'imagenet'.*cifar10, shapes"),
        ({"validation_size": -1}, "-1 is negative"),
        ({"validation_size": 100}, "100 leaves nothing.*less than 100"),
        ({"seed": -1}, "seed -1"),
        ({"timeout": 0}, "timeout 0"),
        ({"examples_per_shard": 0}, "0 examples per shard"),
        ({"archive": "/no/such/archive.tar.gz"}, "does not exist"),
        ({"dataset": "shapes"}, "generated and has no source"),
        ({"archive": "/dev/zero"}, "/dev/zero is neither a file nor a folder"),
        ({"archive": "/tmp/" + "x" * 300}, "name too long; give another --archive"),
        ({"archive": None, "url": ""}, "--url is '', not a download address"),
        ({"archive": None, "url": "http://[::1"}, "not a download address"),
        ({"archive": None, "url": "ftp://host/a.tar.gz"}, "not a download address"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(tmp_path, archive, options, message):
    arguments = {"dataset": "cifar10", "archive": archive, **options}
    with pytest.raises(InputError, match=message) as caught:
        prepare(data_dir=tmp_path / "new" / "data", **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_an_inaccessible_data_dir_is_an_input_error(tmp_path, archive, monkeypatch):
    with pytest.raises(InputError, match="name too long; choose another --data-dir"):
        prepare("cifar10", tmp_path / ("x" * 300), archive=archive)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # root may search every folder
    with pytest.raises(InputError, match="Permission denied; choose another --data-dir"):
        prepare("shapes", tmp_path / "data")


def test_a_second_process_waits_and_says_so(tmp_path):
    order, waiting = [], threading.Event()

    def second():
        with locked(tmp_path / "set", lambda line: (order.append(line), waiting.set())):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "set", order.append):
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    assert order == [f"waiting for another process that is preparing {tmp_path / 'set'}", "first", "second"]


def test_a_waiting_process_recreates_a_removed_folder(tmp_path):
    waiting, locked_again = threading.Event(), []

    def second():
        with locked(tmp_path / "new" / "set", lambda line: waiting.set()):
            locked_again.append((tmp_path / "new" / "set" / ".lock").exists())

    thread = threading.Thread(target=second)
    with pytest.raises(RuntimeError), locked(tmp_path / "new" / "set", lambda line: None):
        thread.start()
        assert waiting.wait(30)
        raise RuntimeError("fails before it writes anything")
    thread.join(30)
    assert locked_again == [True]


def test_a_failed_call_removes_only_the_folders_it_created(tmp_path):
    for kept in ("file", None):
        directory = tmp_path / str(kept) / "set"
        with pytest.raises(RuntimeError), locked(directory, lambda line: None):
            if kept:
                (directory / kept).write_text("")
            raise RuntimeError
        assert directory.exists() is bool(kept)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError), locked(tmp_path / "empty", lambda line: None):
        raise RuntimeError
    assert (tmp_path / "empty").exists()


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
