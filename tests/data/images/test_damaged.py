"""Damaged pictures are named or left out, and an interrupted call is completed by the next."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.data import pool, write
from labkit.data.manifest import find_manifest, load_manifest, verify_shards
from labkit.data.prepare import prepare
from labkit.errors import InputError
from tests.data.kills import killed_at


@pytest.mark.parametrize("count", [1, 25])
def test_damaged_files_are_all_named_before_anything_is_written(pets, tmp_path, count):
    (pets / "dog" / "0.png").write_bytes((pets / "dog" / "0.png").read_bytes()[:-30])
    for number in range(1, count):
        (pets / "cat" / f"bad{number}.jpg").write_text("not a picture")
    said = []
    with pytest.raises(InputError, match=f"{count} pictures? of {23 + count} .* --skip-damaged") as caught:
        prepare(None, tmp_path / "data", images=pets, progress=said.append)
    line = str(caught.value)
    assert "\n" not in line and not (tmp_path / "data").exists()
    if count == 1:
        assert " ".join([*said, line]).count("dog/0.png: damaged") == 1
        return
    assert sum(line.startswith("cannot be used: ") for line in said) == 20 and "and 5 more" in said
    listed = Path(line.split("listed in ")[1].split(";")[0])
    assert len(listed.read_text().splitlines()) == 25 and "dog/0.png: damaged" in listed.read_text()
    listed.unlink()


def test_damaged_files_are_left_out_if_asked_and_stay_known(pets, tmp_path):
    names = ["cat/bad0.jpg", "cat/bad1.jpg"]
    for name in names:
        (pets / name).write_text("not a picture")
    options = {"image_size": 8, "resize": "letterbox", "skip_damaged": True}
    manifest = prepare(None, tmp_path / "data", images=pets, **options).manifest
    assert sum(split.count for split in manifest.splits.values()) == 24
    assert set(manifest.source["skipped"]) == set(names)
    assert not prepare(None, tmp_path / "data", images=pets).did_work
    manifest.shard_path(manifest.splits["train"].shards[0]).unlink()
    assert prepare("pets", tmp_path / "data").manifest == manifest
    path = manifest.directory / "manifest.json"  # and by another version of labkit
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    assert prepare("pets", tmp_path / "data").manifest == manifest
    (pets / "dog" / "new.jpg").write_text("another")
    with pytest.raises(InputError, match="3 pictures of 27"):
        prepare(None, tmp_path / "data", images=pets)


def test_what_an_interrupted_call_left_is_not_believed(pets, tmp_path):
    options = {"images": pets, "examples_per_shard": 4}
    whole = prepare(None, tmp_path / "all", **options).manifest
    with killed_at(3, "add_shard", write.Journal):
        prepare(None, tmp_path / "data", **options)
    shards = sorted((tmp_path / "data" / "pets").glob("*.tfrecord"))
    content = bytearray(shards[0].read_bytes())
    content[-9] ^= 1
    shards[0].write_bytes(content)
    journal = tmp_path / "data" / "pets" / ".pictures.tmp"
    journal.write_text(journal.read_text() + '\n{"plan": 7}\n[1]\n{"facts_of": [')
    assert prepare(None, tmp_path / "data", **options).manifest.checksum == whole.checksum
    assert not verify_shards(load_manifest(tmp_path / "data", "pets"))


_KILLED = """
import os, signal, sys
from labkit.data import pool, write
from labkit.data.prepare import prepare
pool._FEW = 0
pool.usable_cores = lambda: 2
real, left = write.Journal.add_shard, [int(sys.argv[3])]
def add_shard(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
write.Journal.add_shard = add_shard
result = prepare(None, sys.argv[1], images=sys.argv[2], examples_per_shard=4)
print(result.manifest.checksum, *(m in sys.modules for m in ("tensorflow", "keras")))
"""


@pytest.mark.long
def test_a_killed_call_with_several_processes_goes_on_without_tensorflow(pets, tmp_path):
    whole = prepare(None, tmp_path / "all", images=pets, examples_per_shard=4).manifest

    def start(kill_at):
        command = [sys.executable, "-c", _KILLED, str(tmp_path / "data"), str(pets), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert start(3).returncode == -signal.SIGKILL
    assert find_manifest(tmp_path / "data", "pets") is None
    ended = start(-1)
    assert ended.stdout.split() == [whole.checksum, "False", "False"], ended.stderr
    assert not list((tmp_path / "data" / "pets").glob(".*.tmp"))


def test_the_processes_give_what_one_process_does_or_one_sentence(pets, tmp_path, monkeypatch):
    def prepared(name):
        return prepare(None, tmp_path / name, images=pets, image_size=70, examples_per_shard=4).manifest

    alone = prepared("1")
    monkeypatch.setattr(pool, "_FEW", 0)
    monkeypatch.setattr(pool, "usable_cores", lambda: 3)
    assert alone.checksum == prepared("2").checksum
    (pets / "cat" / "1.png").write_text("damaged")
    with pytest.raises(InputError, match="1 picture of 24"):
        prepared("3")
    real = pool.Child

    def killed(*arguments, **options):
        child = real(*arguments, **options)
        child.kill()
        return child

    monkeypatch.setattr(pool, "Child", killed)
    with pytest.raises(InputError, match="ended with status -9"):
        prepared("4")
