"""A data set of somebody's own: trained, resumed, evaluated, exported, on replicas, and transferred."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from labkit.analysis.predictions import load_predictions
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.training.checks import check_targets
from tests.own_data import CLASSES, write_own
from tests.properties.harness import labkit, losses, train

FIELDS = {
    "dataset": "pets",
    "num_layers": 8,
    "train_steps": 10,
    "train_batch_size": 12,
    "eval_batch_size": 12,
    "learning_rate": 0.05,
    "learning_rate_schedule": "one_cycle",
    "validate_every_steps": 5,
    "checkpoint_every_steps": 5,
    "log_every_steps": 1,
}


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_own(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(pets: Manifest, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Ten steps on three classes of 48×48 pixels."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "own")
    train(run.path, **FIELDS, data_dir=pets.directory.parent)
    return run


def test_an_interrupted_training_is_the_uninterrupted_one(trained, pets, tmp_path):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(trained.path, run.path)
    shutil.rmtree(run.checkpoints_path / "step-00000010")
    run.write_status(dataclasses.replace(run.read_status(), state="interrupted", step=5))
    train(run.path, **FIELDS, data_dir=pets.directory.parent)
    assert run.read_status().state == "finished"
    assert losses(run.path) == losses(trained.path) and len(losses(run.path)) == 10


def test_the_run_says_which_data_set_it_was(trained, pets):
    recorded = trained.read_environment()["data"]
    assert recorded["dataset"] == "pets" and recorded["classes"] == list(CLASSES)
    assert recorded["checksum"] == pets.checksum and recorded["source"]["kind"] == "images"


def test_an_evaluation_names_the_classes_without_obeying_them(trained, capsys):
    assert labkit("evaluate", str(trained.path)) == 0
    shown = capsys.readouterr().out
    assert r"line\nbreak" in shown and "<b>dog</b>" in shown and "猫" in shown
    predictions = load_predictions(trained)
    assert predictions.classes == list(CLASSES) and predictions.images.shape == (12, 48, 48, 3)
    # With three classes, every label is among the best five: that isn't worth a number.
    assert "top5_accuracy" not in predictions.summary and "top5_accuracy" not in shown


@pytest.mark.long
def test_an_export_takes_images_of_this_size_and_says_how_pictures_become_such(trained, tmp_path, capsys):
    path = tmp_path / "pets.keras"
    assert labkit("export", str(trained.path), "--check", "--output", str(path)) == 0
    description = json.loads(Path(f"{path}.json").read_text())
    assert description["input"]["shape"] == [None, 48, 48, 3]
    assert description["classes"] == list(CLASSES) and description["output"]["shape"] == [None, 3]
    assert "48×48" in description["input"]["pictures"]


def test_two_classes_and_several_labels_are_trained_too_by_the_loss_that_fits(tmp_path):
    write_own(tmp_path, "pair", classes=("no", "yes"), size=40)
    tags = write_own(tmp_path, "tags", multi_label=True, size=36)
    softmax = Config.from_flat({"dataset": "tags"})
    with pytest.raises(InputError, match="--loss sigmoid"):
        check_targets(softmax, tags)
    check_targets(softmax)  # nothing is known of it yet
    fields = FIELDS | {"train_steps": 2, "data_dir": tmp_path}
    train(tmp_path / "pair-run", **fields | {"dataset": "pair"})
    train(tmp_path / "tags-run", **fields | {"dataset": "tags", "loss": "sigmoid"})
    several = load_predictions(RunDirectory(tmp_path / "tags-run"))
    assert several.multi_label and several.probabilities.shape == (12, 3)


def test_weights_of_one_data_set_start_a_training_on_another_with_other_classes(trained, tmp_path):
    write_own(tmp_path, "birds", classes=tuple("abcdefg"), size=32)
    fields = FIELDS | {"dataset": "birds", "train_steps": 2, "start_from": trained.path}
    train(tmp_path / "run", **fields, data_dir=tmp_path)
    assert load_predictions(RunDirectory(tmp_path / "run")).probabilities.shape[1] == 7
