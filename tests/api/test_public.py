"""``import labkit``: its names, what it loads, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit.config import Config

NAMES = [
    "Callback",
    "CompareRuns",
    "Config",
    "EarlyStopping",
    "InputError",
    "KerasRecorder",
    "Recorder",
    "Run",
    "compare_replicas",
    "correct_data",
    "evaluate",
    "find_learning_rate",
    "image_grid",
    "load_run",
    "prepare_data",
    "read_parameters",
    "runs",
    "search",
    "slider",
    "start",
    "start_run",
    "train",
    "watch_parameters",
]


def test_the_public_names_are_these() -> None:
    assert labkit.__all__ == NAMES
    assert set(NAMES) <= set(dir(labkit))
    for name in NAMES:
        assert getattr(labkit, name).__name__ == name


def test_each_public_name_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    for name in NAMES:
        assert f"labkit.{name}" in page
        assert getattr(labkit, name).__doc__


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = labkit.trian  # type: ignore[attr-defined]


def test_import_loads_neither_tensorflow_nor_numpy_and_takes_under_a_tenth_of_a_second() -> None:
    code = (
        "import json, sys, time\n"
        "before = time.process_time(); import labkit; seconds = time.process_time() - before\n"
        "labkit.Config, labkit.load_run, labkit.train\n"
        "heavy = [name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules]\n"
        "print(json.dumps([seconds, heavy]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, heavy = json.loads(ended.stdout)
    assert heavy == []
    assert seconds < 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: labkit.train(num_layer=8), "unknown parameter 'num_layer'; did you mean 'num_layers'"),
        (lambda: labkit.train(train_steps=-5), "--train-steps is -5; allowed: a whole number of at least 1"),
        (lambda: labkit.train(preset="smok"), "unknown preset 'smok'; did you mean 'smoke'"),
        (lambda: labkit.train(preset=""), "unknown preset ''"),
        (lambda: labkit.train(Config(), preset="smoke"), "preset is 'smoke' beside a configuration"),
        (lambda: labkit.evaluate("nothing"), "no run at 'nothing'"),
        (lambda: labkit.load_run("nothing"), "no run at 'nothing'"),
        (lambda: labkit.Run("nothing"), "nothing is not a run directory"),
        (lambda: labkit.runs("nothing"), "'nothing' is not a directory"),
        (lambda: labkit.compare_replicas(["3 replica"]), "--train-batch-size is 128 with 3 replicas"),
        (lambda: labkit.prepare_data("cifar"), "data set 'cifar' is unknown"),
        (
            lambda: labkit.prepare_data("shapes", train_examples=10),
            "--train-examples is 10 without --data-dir",
        ),
        (lambda: labkit.prepare_data("shapes", classes=[1, 2]), "--classes is '1,2' without --data-dir"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    with pytest.raises(labkit.InputError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: labkit.train("smoke"), "for a preset write preset='smoke'"),
        (lambda: labkit.train({"dataset": "shapes"}), "config is dict; allowed: a labkit.Config"),
        (lambda: labkit.train(preset="smoke", overwrite="no"), "overwrite is 'no'; allowed: True or False"),
        (
            lambda: labkit.train(preset="smoke", job_dir=""),
            "--job-dir is ''; allowed: a path on this machine",
        ),
        (lambda: labkit.load_run(5), "run is 5; allowed: a path"),
        (lambda: labkit.evaluate(None), "run is None; allowed: a path"),
    ],
)
def test_values_of_another_kind_are_refused_with_the_way_out(call, words) -> None:
    with pytest.raises(labkit.InputError) as refusal:
        call()
    assert words in str(refusal.value)
