"""``labkit export``: bad input is one line, exit code 2, and nothing is written."""

import json
import sys

import pytest

from labkit.commands import main as cli
from labkit.config import Config
from labkit.export import api
from labkit.run_directory import RunDirectory


@pytest.fixture
def folder(tmp_path, shapes_dir, monkeypatch):
    """A folder with a run that has no checkpoint yet, and what may be in the way."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    config = Config.from_flat({"num_layers": 8, "dataset": "shapes", "data_dir": str(shapes_dir)})
    run.config_path.write_text(json.dumps(config.to_json()))
    (tmp_path / "there.keras").write_text("older")
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_tensorflow(monkeypatch):
    monkeypatch.setattr(api, "_import_without_gpus", lambda: pytest.fail("TensorFlow was imported"))


def refused(folder, arguments, capsys) -> str:
    before = sorted(folder.rglob("*"))
    try:
        code = cli.main(["export", *arguments])
    except SystemExit as end:  # what argparse itself refuses
        code = end.code
    assert code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("labkit: error: ") and shown.err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
    assert (folder / "there.keras").read_text() == "older"
    return shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["no run at 'nowhere'"]),
        (["run", "--format", "pb"], ["--format", "'pb'", "saved_model"]),
        (["run", "--output", "a.h5"], ["--output", "a.h5", "ends with .keras"]),
        (["run", "--output", "there.keras"], ["there.keras already exists", "--overwrite"]),
        (
            ["run", "--output", "photos", "--format", "saved_model", "--overwrite"],
            ["a folder without a SavedModel"],
        ),
        (["run", "--output", "there.keras/a.keras"], ["not a directory"]),
        (["run", "--data-dir", "photos"], ["no prepared 'shapes' data set in"]),
    ],
)
def test_bad_input_is_refused_before_tensorflow_loads(arguments, words, folder, without_tensorflow, capsys):
    shown = refused(folder, arguments, capsys)
    for word in words:
        assert word in shown


def test_a_missing_converter_is_named_with_what_installs_it(folder, without_tensorflow, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    shown = refused(folder, ["run", "--format", "onnx"], capsys)
    assert "--format onnx needs tf2onnx, not installed here" in shown
    assert "pip install '.[onnx]'" in shown


def test_a_run_without_a_checkpoint_is_refused(folder, capsys):
    for arguments in ([], ["--checkpoint", "last"]):
        assert "no checkpoint yet" in refused(folder, ["run", *arguments], capsys)
