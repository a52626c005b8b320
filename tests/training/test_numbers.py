"""Labels that are numbers: what a network learns, how well, and that every guarantee holds for it."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import labkit
from labkit.analysis.predictions import load_predictions
from labkit.config import Config
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.export.api import export
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import selection_metric
from labkit.training.objective import loss_of
from labkit.training.scores import number_metrics, scores_of_numbers
from tests.multilabel import TEST, prepare_small
from tests.properties.harness import checkpoint_values, killed_behind, losses, metrics, train
from tests.properties.harness import labkit as command

RANDOM = np.random.default_rng(1)
LABELS = (50 + 20 * RANDOM.normal(size=(40, 1))).astype(np.float32)
OUTPUTS = RANDOM.normal(size=(40, 1)).astype(np.float32)
FIELDS = {
    "dataset": "shapes_size",
    "loss": "mse",
    "num_layers": 8,
    "train_steps": 8,
    "train_batch_size": 32,
    "checkpoint_every_steps": 4,
    "validate_every_steps": 4,
    "keep_checkpoints": 5,
    "learning_rate": 0.01,
    "precision": "float64",
    "sync_batch_norm": True,
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return prepare_small(tmp_path_factory.mktemp("data"), "shapes_size")


def of(manifest, **values):
    return loss_of(Config.from_flat({"dataset": "shapes_size"} | values), manifest)


# ---- losses and metrics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keras_loss"),
    [("mse", "MeanSquaredError"), ("mae", "MeanAbsoluteError"), ("huber", "Huber")],
)
def test_a_loss_is_keras_in_standard_units(manifest, name, keras_loss):
    loss = of(manifest, loss=name)
    standard = (LABELS - np.float32(manifest.target_mean)) / np.float32(manifest.target_std)
    expected = getattr(keras.losses, keras_loss)()(standard, OUTPUTS)
    found = loss.per_example(tf.constant(LABELS), tf.constant(OUTPUTS), 0.0)
    assert float(tf.reduce_mean(found)) == pytest.approx(float(expected), rel=1e-5)
    scores = loss.scores(LABELS, OUTPUTS)
    assert scores["loss"] == pytest.approx(float(expected), rel=1e-5)
    step = float(tf.reduce_mean(loss.step_metrics["mean_absolute_error"](LABELS, tf.constant(OUTPUTS))))
    assert step == pytest.approx(scores["mean_absolute_error"], rel=1e-5)


def test_predictions_are_in_the_unit_of_the_labels(manifest):
    loss = of(manifest, loss="mse")
    mean, std = np.float64(manifest.target_mean), np.float64(manifest.target_std)
    np.testing.assert_allclose(loss.probabilities(OUTPUTS), OUTPUTS * std + mean, rtol=1e-6)
    train = load_split(manifest, "train")[1]
    always_the_mean = loss.scores(train, np.zeros_like(train))
    assert always_the_mean["loss"] == pytest.approx(1, rel=1e-5)
    assert always_the_mean["r2"] == pytest.approx(0, abs=1e-5)


def test_scores_are_those_of_their_formulas():
    true = np.array([[1.0, 10], [2, 20], [4, 60]], np.float32)
    given = np.array([[1.5, 10], [2, 30], [3, 60]], np.float32)
    found = scores_of_numbers(true, given, np.array([1.0, 10.0]))
    assert found["mean_absolute_error"] == pytest.approx((0.5 + 1 + 10) / 6)
    assert found["loss"] == pytest.approx((0.25 + 1 + 1) / 6)
    r2 = 1 - 1.25 / ((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2), 1 - 100 / 1400
    assert found["r2"] == pytest.approx(np.mean(r2))
    rows = number_metrics(true, given, ["a", "b"])
    assert [row["mean_absolute_error"] for row in rows] == pytest.approx([0.5, 10 / 3])
    assert [row["r2"] for row in rows] == pytest.approx(r2)
    same = number_metrics(np.ones((3, 1)), np.ones((3, 1)), ["a"])
    assert same[0]["r2"] is None  # numbers that don't vary have none
    assert np.isnan(scores_of_numbers(true[:1], given[:1] + 1, np.ones(2))["r2"])  # nor has a single image


def test_the_smallest_error_is_best():
    rows = [{"split": "validation", "mean_absolute_error": error, "loss": 9.0} for error in (3.0, 0.5, 1.0)]
    assert max(rows, key=selection_metric) is rows[1]


@pytest.mark.slow
def test_a_loss_and_a_metric_of_ones_own(manifest, tmp_path):
    def off_by(labels, numbers):
        return tf.reduce_max(tf.abs(labels - numbers), axis=-1)

    def fourth_power(labels, outputs):
        return tf.reduce_mean((labels - outputs) ** 4, axis=-1)

    run = labkit.train(
        dataset="shapes_size",
        data_dir=manifest.directory.parent,
        job_dir=tmp_path / "run",
        loss=fourth_power,
        metrics=[off_by, keras.metrics.RootMeanSquaredError],
        num_layers=8,
        train_steps=2,
        train_batch_size=16,
        num_gpus=0,
    )
    test, errors = run.metrics("test"), run.predictions("test").errors
    assert test["off_by"][-1] == pytest.approx(errors.max(axis=1).mean(), rel=1e-5)
    assert test["root_mean_squared_error"][-1] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "has numbers: choose --loss mse or mae or huber"),
        ({"loss": "sigmoid"}, "several labels per image"),
        ({"loss": "focal"}, "one label per image or several labels per image"),
        ({"loss": "mse", "class_weights": "balanced"}, "--class-weights needs classes"),
        ({"loss": "mse", "balanced_sampling": True}, "--balanced-sampling needs classes"),
        ({"loss": "mse", "metrics": "auc"}, "which is for classes"),
        ({"loss": "mse", "label_smoothing": 0.1}, "--label-smoothing"),
        ({"loss": "mse", "dataset": "shapes"}, "--dataset shapes has one label per image"),
    ],
)
def test_what_is_for_classes_is_refused(manifest, tmp_path, values, said):
    fields = {"dataset": "shapes_size", "data_dir": manifest.directory.parent, "job_dir": tmp_path / "run"}
    with pytest.raises(InputError) as caught:
        labkit.train(**fields | values, num_layers=8, train_steps=2, train_batch_size=16, num_gpus=0)
    assert said in str(caught.value) and not (tmp_path / "run").exists()


# ---- a run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(manifest, tmp_path_factory):
    job_dir = tmp_path_factory.mktemp("numbers") / "run"
    train(job_dir, **FIELDS, data_dir=manifest.directory.parent)
    return job_dir


@pytest.mark.slow
def test_a_run_records_predictions_in_the_unit_of_the_labels(run):
    for row in metrics(run).split("train"):
        assert row["mean_absolute_error"] > 0 and "accuracy" not in row
    [test] = metrics(run).split("test")
    predictions = load_predictions(RunDirectory(run))
    assert len(predictions) == test["examples"] == TEST and predictions.are_numbers
    assert predictions.errors.mean() == pytest.approx(test["mean_absolute_error"], rel=1e-5)
    assert 4 < predictions.probabilities.mean() < 16  # radii are from 8 to 12.5
    [row] = json.loads((run / "predictions" / "test.json").read_text())["per_class"]
    assert row["name"] == "radius" and row["count"] == TEST


@pytest.mark.slow
@pytest.mark.long
def test_going_on_equals_no_interruption(run, manifest):
    stopped = killed_behind(run, 4)
    train(stopped, **FIELDS, data_dir=manifest.directory.parent)
    assert losses(run) == losses(stopped)
    first, second = (checkpoint_values(one, 8) for one in (run, stopped))
    assert not [key for key, value in first.items() if value.tobytes() != second[key].tobytes()]


@pytest.mark.slow
@pytest.mark.long
def test_two_replicas_equal_one(run, manifest, tmp_path):
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True, "data_dir": manifest.directory.parent}
    train(tmp_path / "two", **FIELDS | replicas)
    assert np.abs(np.subtract(losses(run), losses(tmp_path / "two"))).max() < 1e-9


@pytest.mark.slow
@pytest.mark.long
def test_an_exported_network_gives_the_numbers(run, tmp_path, capsys):
    file = tmp_path / "net.keras"
    assert command("export", str(run), "--output", str(file), "--check") == 0
    assert "mean absolute error" in capsys.readouterr().out
    predictions = load_predictions(RunDirectory(run))
    found = np.asarray(keras.saving.load_model(file)(predictions.images, training=False))
    np.testing.assert_allclose(found, predictions.probabilities, rtol=1e-4)
    assert json.loads((tmp_path / "net.keras.json").read_text())["output"]["name"] == "numbers"
    with pytest.raises(InputError, match="gives numbers"):
        export(str(run), probabilities=True, output=tmp_path / "other.keras")


@pytest.mark.slow
@pytest.mark.long
def test_a_replayed_step_has_the_loss_of_its_row(run, tmp_path):
    assert command("replay", str(run), "--step", "6", "--output", str(tmp_path / "made")) == 0
    told = json.loads((tmp_path / "made" / "replay.json").read_text())
    assert told["metrics"]["loss"] == pytest.approx(losses(run)[5], abs=1e-12)


@pytest.mark.slow
def test_commands_speak_of_numbers_not_of_classes(run, tmp_path, capsys):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "dark.png")
    assert command("predict", str(run), str(tmp_path / "dark.png"), "--top", "2") == 0
    told = capsys.readouterr()
    assert "radius" in told.out and "--top 2 has no effect" in told.err
    assert command("evaluate", str(run)) == 0
    assert "number  count  mean_absolute_error" in capsys.readouterr().out


@pytest.mark.slow
def test_figures_show_numbers(run):
    loaded = labkit.load_run(run)
    for figure in (loaded.confusion_matrix("test"), loaded.class_accuracy("test")):
        assert figure.axes or figure.texts
    with pytest.raises(InputError, match=r"numbers \(radius\), and this needs classes"):
        _ = loaded.predictions("test").wrong
