"""The manifest is read as written, damaged manifests are refused, and damaged shards are found."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.commands import main as cli
from labkit.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    Split,
    find_manifest,
    load_manifest,
    verify_shards,
    write_manifest,
)
from labkit.errors import InputError
from tests.fuzzing import as_file, damaged_bytes, damaged_json, json_values, value_or_line
from tests.tiny import prepare_tiny


def test_a_manifest_is_read_as_written(prepared):
    assert Manifest.from_json(prepared.to_json(), prepared.directory) == prepared
    assert load_manifest(prepared.directory.parent, "cifar10") == prepared


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


def test_a_manifest_of_another_version_is_not_called_damaged(copy):
    path = copy.directory / MANIFEST_NAME
    path.write_text(_edited(path.read_text(), format_version=2))
    words = r"was written by another version of labkit \(format 2, here 3\); .*labkit data prepare"
    with pytest.raises(InputError, match=words):
        find_manifest(copy.directory.parent, "cifar10")


# What the checksum leaves out, so that it can be changed: where the data came from, and the size of a file.
_NOT_CHECKED = ("directory", "source", "all_classes", "train_examples", "splits")
_SPLITS = {
    "train": Split(
        "train",
        30,
        (
            Shard("train-00000-of-00002.tfrecord", 17, "a" * 64, 1000),
            Shard("train-00001-of-00002.tfrecord", 13, "b" * 64, 900),
        ),
    ),
    "test": Split("test", 5, (Shard("test-00000-of-00001.tfrecord", 5, "c" * 64, 500),)),
}
_SOURCE = {"kind": "archive", "location": "/a", "sha256": "d" * 64, "matches_published": None}
_SMALL = Manifest(
    "cifar10", Path("cifar10"), ("cat", "dog"), (32, 32, 3), _SPLITS, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1),
    _SOURCE, validation_size=3, seed=7, all_classes=("cat", "dog", "cow"), train_examples=30,
)  # fmt: skip
_TEXT = _SMALL.to_json().encode()


@settings(max_examples=300, deadline=None)
@given(
    content=st.one_of(
        damaged_json(json.loads(_TEXT)).map(as_file),
        damaged_json(json.loads(_TEXT)).map(as_file),
        damaged_bytes(_TEXT),
        json_values.map(as_file),
        st.binary(max_size=30),
    )
)
@example(_TEXT.replace(b'"bytes": 500', b'"bytes": "500"'))
@example(_TEXT.replace(b'"kind": "archive"', b'"kind": ["archive"]'))
@example(_TEXT.replace(b'"name": "test"', b'"name": ["test"]'))
@example(_TEXT.replace(b'"cow"', b"[]"))
@example(_TEXT.replace(b'"bytes": 500', b'"a\\nb": 500'))
@example(_TEXT.replace(b"train-00000-of", b"../../etc/passwd-of", 1))
@example(_TEXT.replace(b'"count": 17', b'"count": 16', 1))
@example(b"[" * 100_000)
def test_any_change_of_a_manifest_is_refused_or_leaves_all_that_trains_as_it_is(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "any-manifest"
    (folder / "cifar10").mkdir(parents=True, exist_ok=True)
    (folder / "cifar10" / MANIFEST_NAME).write_bytes(content)
    found, line = value_or_line(lambda: load_manifest(folder, "cifar10"))
    if found is None:
        assert any(words in line for words in ("is damaged", "cannot be read", "another version"))
        assert "labkit data prepare" in line
    else:
        assert found.checksum == _SMALL.checksum
        for field in dataclasses.fields(found):
            if field.name not in _NOT_CHECKED:
                assert getattr(found, field.name) == getattr(_SMALL, field.name)
        assert verify_shards(found) == [shard.file for split in _SPLITS.values() for shard in split.shards]
    assert cli.main(["data", "list", "--data-dir", str(folder)]) == 0


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


def test_a_manifest_is_shown_as_a_short_table_without_hashes_and_markup_of_class_names(tmp_path):
    manifest = prepare_tiny(tmp_path)
    for shown in (repr(manifest), manifest._repr_html_(), repr(manifest.splits)):
        assert not re.search("[0-9a-f]{16}", shown.replace(str(tmp_path), ""))
        assert len(shown) < 1500
    assert manifest._repr_html_().count("<tr>") == len(repr(manifest).splitlines()) == 5
    for fact in (f"{manifest.count('train'):,} train", manifest.classes[0], str(manifest.directory)):
        assert fact in repr(manifest)
        assert fact in manifest._repr_html_()
    named = dataclasses.replace(manifest, classes=("<b>cat</b>", "dog\x1b[31m"))
    assert "<b>cat" not in named._repr_html_() and "\x1b" not in repr(named)
