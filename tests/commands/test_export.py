"""``labkit export``: bad input is one line, exit code 2, and nothing is written."""

import json
import re
import sys

import pytest

from labkit.config import Config
from labkit.export import api
from labkit.run_directory import RunDirectory
from tests.commands.in_process import refused, tree


@pytest.fixture
def folder(tmp_path, shapes_dir, monkeypatch):
    """A folder with a run that has no checkpoint yet, and what may be in the way."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    config = Config.from_flat({"num_layers": 8, "dataset": "shapes", "data_dir": str(shapes_dir)})
    run.config_path.write_text(json.dumps(config.to_json()))
    for name in ("there.keras", "described.keras.json", "file"):
        (tmp_path / name).write_text("older")
    for name in ("photos", "folder.keras"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere", "no run at 'nowhere'"),
        ("run --format pb", "'pb'.*saved_model"),
        ("run --output a.h5", "a.h5.*ends with .keras"),
        ("run --format tflite --output a", "ends with .tflite"),
        ("run --output a.tflite", "--format tflite"),
        ("run --format saved_model --output a.onnx", "a folder name, or --format onnx"),
        ("run --output there.keras", "there.keras already exists.*--overwrite"),
        ("run --output described.keras", "described.keras.json already exists"),
        ("run --output there.keras/a.keras", "not a directory"),
        ("run --overwrite --output folder.keras", "is a folder"),
        ("run --overwrite --output folder.keras --format saved_model", "--format keras"),
        ("run --overwrite --output photos --format saved_model", "a folder without a SavedModel"),
        ("run --overwrite --output file --format saved_model", "is a file"),
        ("run --data-dir photos", "no prepared 'shapes' data set in"),
        ("run --format onnx", r"--format onnx needs tf2onnx, not installed here.*pip install '\.\[onnx\]'"),
        ("run", "no checkpoint yet"),
        ("run --checkpoint last", "no checkpoint yet"),
    ],
)
def test_bad_input_is_refused_before_tensorflow_loads(arguments, words, folder, monkeypatch):
    if "no checkpoint" not in words:
        monkeypatch.setattr(api, "import_without_gpus", lambda: pytest.fail("TensorFlow was imported"))
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    before = tree(folder)
    assert re.search(words, refused("export", *arguments.split()))
    assert tree(folder) == before
