"""Unsuitable output paths are refused early, and exports are replaced atomically."""

import json
import sys
from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.export.formats import FORMATS
from labkit.export.output import check_output, folder_beside, publish


@pytest.mark.parametrize(
    ("name", "format", "words"),
    [
        ("a.h5", "keras", "ends with .keras"),
        ("a", "tflite", "ends with .tflite"),
        ("a.tflite", "keras", "--format tflite"),
        ("a.onnx", "saved_model", "a folder name, or --format onnx"),
        ("there.keras", "keras", "--overwrite"),
        ("described.keras", "keras", "described.keras.json already exists"),
        ("there.keras/a.keras", "keras", "not a directory"),
    ],
)
def test_unsuitable_paths_are_refused(tmp_path, name, format, words):
    (tmp_path / "there.keras").write_text("")
    (tmp_path / "described.keras.json").write_text("")
    with pytest.raises(InputError, match=words):
        check_output(tmp_path / name, FORMATS[format], overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["described.keras.json", "there.keras"]


@pytest.mark.parametrize(
    ("name", "format", "words"),
    [
        ("folder.keras", "keras", "is a folder"),
        ("folder.keras", "saved_model", "--format keras"),
        ("photos", "saved_model", "a folder without a SavedModel"),
        ("file", "saved_model", "is a file"),
    ],
)
def test_only_exports_are_overwritten(tmp_path, name, format, words):
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=words):
        check_output(tmp_path / name, FORMATS[format], overwrite=True)


def test_checking_does_not_create_the_folder(tmp_path):
    check_output(tmp_path / "new" / "a.keras", FORMATS["keras"], overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_export_is_replaced_together_with_its_description(tmp_path, is_folder):
    path = tmp_path / "new" / "export"
    for content in ("first", "second"):
        with folder_beside(path) as folder:
            written = folder / path.name
            if is_folder:
                written.mkdir()
                (written / content).write_text("")
            else:
                written.write_text(content)
            publish(written, path, {"content": content})
    assert sorted(child.name for child in path.parent.iterdir()) == ["export", "export.json"]
    assert json.loads((path.parent / "export.json").read_text()) == {"content": "second"}
    assert (
        [child.name for child in path.iterdir()] == ["second"] if is_folder else path.read_text() == "second"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where no file can be created")
def test_a_folder_that_cannot_be_created_is_named():
    with (
        pytest.raises(InputError, match="--output /proc/net.keras can't be written"),
        folder_beside(Path("/proc/net.keras")),
    ):
        pass
