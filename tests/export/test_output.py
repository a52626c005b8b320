"""Where exports go: refused early, replaced whole."""

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
        ("a.onnx", "saved_model", "a folder's, or --format onnx"),
        ("there.keras", "keras", "--overwrite"),
        ("described.keras", "keras", "described.keras.json is there already"),
        ("there.keras/a.keras", "keras", "not a directory"),
    ],
)
def test_bad_places_are_refused(tmp_path, name, format, words):
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
        ("photos", "saved_model", "holds no SavedModel"),
        ("file", "saved_model", "is a file"),
    ],
)
def test_overwriting_spares_what_is_no_export(tmp_path, name, format, words):
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=words):
        check_output(tmp_path / name, FORMATS[format], overwrite=True)


def test_good_places_need_no_folder_yet(tmp_path):
    check_output(tmp_path / "new" / "a.keras", FORMATS["keras"], overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_there_is_replaced_with_its_description(tmp_path, is_folder):
    path = tmp_path / "new" / "export"
    for content in ("first", "second"):
        with folder_beside(path) as folder:
            made = folder / path.name
            if is_folder:
                made.mkdir()
                (made / content).write_text("")
            else:
                made.write_text(content)
            publish(made, path, {"content": content})
    assert sorted(child.name for child in path.parent.iterdir()) == ["export", "export.json"]
    assert json.loads((path.parent / "export.json").read_text()) == {"content": "second"}
    assert (
        [child.name for child in path.iterdir()] == ["second"] if is_folder else path.read_text() == "second"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, whatever the rights")
def test_where_nothing_can_be_made_the_place_is_named():
    with (
        pytest.raises(InputError, match="--output /proc/net.keras can't be written"),
        folder_beside(Path("/proc/net.keras")),
    ):
        pass
