"""Several labels per image: evaluated once each, learned, refused where the loss isn't for them."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.analysis.predictions import load_predictions
from labkit.commands import main as cli
from labkit.config import Config
from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.optim.optimizers import SGD
from labkit.run_directory import RunDirectory
from labkit.training.evaluate import evaluate_split
from labkit.training.losses import LOSSES, SIGMOID
from tests.multilabel import TEST, prepare_small
from tests.properties.harness import losses, metrics, train
from tests.steps import compiled_step


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return prepare_small(tmp_path_factory.mktemp("data"))


def scores_by_hand(labels, probabilities):
    """Figures from probabilities: sets of labels compared image by image, label by label."""
    pairs = [
        (set(np.flatnonzero(row)), set(np.flatnonzero(chances > 0.5)))
        for row, chances in zip(labels, probabilities, strict=True)
    ]
    f1 = []
    for label in range(labels.shape[1]):
        both = sum(label in true and label in given for true, given in pairs)
        either = sum(label in true for true, _ in pairs) + sum(label in given for _, given in pairs)
        f1.append(2 * both / either if either else 0)
    both = sum(len(true & given) for true, given in pairs)
    wrong = sum(len(true ^ given) for true, given in pairs)
    return {
        "accuracy": sum(true == given for true, given in pairs) / len(pairs),
        "binary_accuracy": 1 - wrong / labels.size,
        "f1_micro": 2 * both / sum(len(true) + len(given) for true, given in pairs),
        "f1_macro": sum(f1) / len(f1),
        "loss": float(
            -np.where(labels == 1, np.log(probabilities), np.log(1 - probabilities)).sum(axis=1).mean()
        ),
    }


@pytest.mark.parametrize("batch_size", [1000, 64, 33, 1])
def test_every_image_is_evaluated_once(manifest, batch_size):
    kernel = 0.02 * tf.random.stateless_normal([32 * 32 * 3, 10], [1, 2])

    def predict(images):
        return tf.reshape(images, [-1, 32 * 32 * 3]) @ kernel

    found = evaluate_split(
        tf.distribute.get_strategy(), predict, manifest, "test", loss=SIGMOID, global_batch_size=batch_size
    )
    images, labels = load_split(manifest, "test")
    assert found.examples == len(labels) == TEST
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.index, np.arange(TEST))
    expected = 1 / (1 + np.exp(-predict(standardize(images, manifest)).numpy().astype(np.float64)))
    assert found.metrics == pytest.approx(scores_by_hand(labels, expected), rel=1e-4)
    assert found.confusion() is None
    with pytest.raises(ValueError, match=r"'softmax' isn't for shapes_multilabel, whose labels are classes"):
        evaluate_split(tf.distribute.get_strategy(), None, manifest, "test", global_batch_size=10)


@pytest.mark.parametrize("name", LOSSES)
def test_a_small_network_learns_its_batch_by_heart(manifest, name):
    keras.utils.set_random_seed(0)
    images, labels = (values[:64] for values in load_split(manifest, "train"))
    images = standardize(images, manifest)
    targets = labels if name == "sigmoid" else labels.argmax(axis=1).astype(np.int32)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10),
        ]
    )
    config = Config.from_flat({"weight_decay": 0.0, "momentum": 0.9})
    step = compiled_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, config.optimizer),
        tf.Variable(0, dtype=tf.int64, trainable=False),
        global_batch_size=64,
        loss=LOSSES[name],
        label_smoothing=0.0,
    )
    rate, stop = tf.constant(0.003), tf.constant(0.0)
    first, *_, last = (
        LOSSES[name].named(step(images, tf.constant(targets), rate, stop).numpy()[:-1]) for _ in range(80)
    )
    assert last["loss"] < 0.2 * first["loss"]
    assert first["accuracy"] < 0.3 and last["accuracy"] > 0.9, (first, last)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "shapes_multilabel"], ["'softmax'", "shapes_multilabel", "--loss sigmoid"]),
        (
            ["--dataset", "shapes", "--loss", "sigmoid"],
            ["'sigmoid'", "one label per image", "softmax"],
        ),
        (["--loss", "sigmoid"], ["--dataset auto has one label per image"]),
        (["--loss", "hinge"], ["--loss", "hinge", "softmax", "sigmoid"]),
    ],
)
def test_a_loss_for_other_targets_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, arguments, words
):
    """The data set isn't prepared yet: it must not be drawn, or downloaded, for nothing."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    try:
        code = cli.main(["train", "--num-layers", "8", "--train-steps", "5", *arguments])
    except SystemExit as end:  # what the parser itself refuses
        code = end.code
    assert code == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("labkit: error: ") and shown.err.count("\n") == 1
    assert all(word in shown.err for word in words), shown.err
    assert shown.out == "" and not list(tmp_path.iterdir())


FIELDS = {
    "dataset": "shapes_multilabel",
    "loss": "sigmoid",
    "train_steps": 6,
    "train_batch_size": 32,
    "eval_batch_size": 32,
    "label_smoothing": 0.1,
    "validate_every_steps": 3,
}


@pytest.fixture(scope="module")
def run(manifest, tmp_path_factory):
    job_dir = tmp_path_factory.mktemp("several-labels") / "run"
    train(job_dir, **FIELDS, data_dir=manifest.directory.parent)
    return job_dir


@pytest.mark.slow
def test_a_run_records_what_belongs_to_its_loss(run):
    rows = metrics(run)
    for row in rows.split("train"):
        assert row.keys() >= {"loss", "accuracy", "binary_accuracy"} and "top5_accuracy" not in row
    validations, (test,) = rows.split("validation"), rows.split("test")
    assert [row["step"] for row in validations] == [3, 6]
    # With an exact match of 0 for long, micro-F1 is what tells the better checkpoint.
    assert test["step"] == max(validations, key=lambda row: row["f1_micro"])["step"]
    predictions = load_predictions(RunDirectory(run))
    assert len(predictions) == test["examples"] == TEST and predictions.multi_label
    expected = scores_by_hand(predictions.labels, predictions.probabilities.astype(np.float64))
    for row in (test, json.loads((run / "predictions" / "test.json").read_text())):
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_is_evaluated_and_exported(run, monkeypatch, capsys):
    monkeypatch.chdir(run)

    def labkit(*arguments):
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    told = labkit("evaluate", str(run))
    assert "accuracy" in told and "f1_macro" in told and "recall" in told and "top-" not in told
    assert "same prediction for 100.00%" in labkit(
        "export", str(run), "--output", "net.keras", "--probabilities", "--check"
    )
    description = json.loads((run / "net.keras.json").read_text())
    assert description["run"]["loss"] == "sigmoid" and description["output"]["name"] == "probabilities"
    predictions = load_predictions(RunDirectory(run))
    found = np.asarray(keras.saving.load_model(run / "net.keras")(predictions.images, training=False))
    np.testing.assert_allclose(found, predictions.probabilities, atol=1e-4)


@pytest.mark.slow
@pytest.mark.long
def test_two_replicas_give_the_curve_of_one(manifest, tmp_path):
    # In float32, rounding reaches 1e-5 of such losses, some 8 nats, within ten steps.
    exact = {"precision": "float64", "sync_batch_norm": True, "learning_rate": 0.01}
    fields = FIELDS | exact | {"data_dir": manifest.directory.parent}
    train(tmp_path / "one", **fields)
    train(tmp_path / "two", **fields | {"num_gpus": 2, "simulate_missing_gpus": True})
    assert np.abs(np.subtract(losses(tmp_path / "one"), losses(tmp_path / "two"))).max() < 1e-9
    ours, theirs = (metrics(tmp_path / name).split("test")[0] for name in ("one", "two"))
    assert theirs["examples"] == TEST and theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
