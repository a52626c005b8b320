"""``labkit.KerasRecorder``: rows are what each batch of ``model.fit`` had."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import labkit


class Spread(keras.metrics.Metric):
    """The largest logit so far: no mean over images."""

    def __init__(self, **options):
        super().__init__(**options)
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, true, logits, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(logits)))

    def result(self):
        return self.largest


@pytest.mark.parametrize("at_once", [1, 2])
def test_rows_are_those_of_single_batches(tmp_path, monkeypatch, at_once):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(10 * 16 + 8, 5)).astype("float32")
    labels = (inputs.sum(axis=1) > 0).astype("int32")

    def cross_entropy(true, logits):
        return keras.losses.sparse_categorical_crossentropy(true, logits, from_logits=True)

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    model.compile(
        keras.optimizers.SGD(0.0),
        cross_entropy,
        metrics=["accuracy", Spread(name="spread")],
        steps_per_execution=at_once,
    )
    # With a rate of 0 the loss of each batch is known: weights never change.
    model.layers[0].set_weights([rng.normal(size=(5, 2)).astype("float32"), np.zeros(2, "float32")])
    logits = model.predict(inputs, verbose=0)
    each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    losses = [each[at : at + 16 * at_once].mean() for at in range(0, 168, 16 * at_once)]
    history = model.fit(
        inputs,
        labels,
        batch_size=16,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(inputs[:40], labels[:40]),
        callbacks=[labkit.KerasRecorder("fit", {"width": 2})],
    )
    run = labkit.load_run("fit")
    train, validation = run.metrics(), run.metrics("validation")
    steps = [*range(at_once, 11, at_once), 11]  # the last batch has eight images
    assert train["step"].tolist() == [*steps, *(11 + step for step in steps)]
    assert train["loss"] == pytest.approx(losses * 2, rel=1e-4)
    assert validation["step"].tolist() == [11, 22]
    assert validation["loss"] == pytest.approx(history.history["val_loss"], rel=1e-6)
    assert (run.state, run.step, run.status.total_steps) == ("finished", 22, 22)
    assert set(train["learning_rate"]) == {0.0}
    assert "accuracy" in train and "spread" not in train and "spread" in validation


def test_a_data_set_of_unknown_length_and_a_second_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    inputs = np.arange(35, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    data = tf.data.Dataset.from_tensor_slices((inputs, inputs * 0)).batch(10).filter(lambda x, y: True)
    recorder = labkit.KerasRecorder("fit")
    for _ in range(2):
        model.fit(data, epochs=2, verbose=0, callbacks=[recorder])
    run = labkit.load_run("fit")
    losses = [(inputs[at : at + 10] ** 2).mean() for at in (0, 10, 20, 30)]  # the last batch has five
    assert run.metrics()["step"].tolist() == list(range(1, 17))
    assert run.metrics()["loss"] == pytest.approx(losses * 4, rel=1e-4)
    assert (run.state, run.step) == ("finished", 16)


def test_epochs_go_on_in_a_further_fit_and_the_total_counts_those_to_come(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    inputs = np.arange(8, dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    recorder = labkit.KerasRecorder("fit")
    given = {"batch_size": 4, "verbose": 0, "validation_data": (inputs, inputs), "callbacks": [recorder]}
    ends = []
    for epochs in ({"epochs": 2}, {"epochs": 4, "initial_epoch": 2}, {"epochs": 1}):
        model.fit(inputs, inputs, **given, **epochs)
        status = labkit.load_run("fit").status
        ends.append((status.step, status.total_steps))
    assert ends == [(4, 4), (8, 8), (10, 10)]
    run = labkit.load_run("fit")
    assert run.metrics()["epoch"].tolist() == [step / 2 for step in range(1, 11)]
    assert run.metrics("validation")["epoch"].tolist() == [1, 2, 3, 4, 5]


def test_weighted_metrics_and_the_learning_rate_are_those_of_the_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    inputs = np.arange(8, dtype="float32")[:, None]
    weights = np.array([5, 5, 0.1, 0.1, 3, 1, 0, 0], "float32")
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.0, 1e-9, 2e-9])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(
        keras.optimizers.SGD(rate),
        "mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="root")],
        weighted_metrics=[keras.metrics.MeanAbsoluteError(name="error")],
    )
    recorder = labkit.KerasRecorder("fit")
    model.fit(
        inputs,
        inputs * 0,
        batch_size=2,
        sample_weight=weights,
        shuffle=False,
        verbose=0,
        callbacks=[recorder],
    )
    rows = labkit.load_run("fit").metrics()
    assert rows["learning_rate"] == pytest.approx([0, 1e-9, 2e-9, 2e-9])
    assert rows["error"] == pytest.approx([0.5, 2.5, (4 * 3 + 5) / 4, np.nan], rel=1e-5, nan_ok=True)
    assert rows["loss"] == pytest.approx(((inputs[:, 0] ** 2 * weights).reshape(4, 2)).mean(axis=1), rel=1e-4)
    assert "root" not in rows


def test_metrics_of_one_name_and_of_two_outputs_keep_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(48, 5)).astype("float32"), rng.integers(0, 3, 48)
    weights = rng.uniform(0.1, 5, 48).astype("float32")
    images = keras.Input((5,))
    heads = [keras.layers.Dense(3, activation="softmax", name=name)(images) for name in "ab"]
    loss = "sparse_categorical_crossentropy"
    for outputs, names in ((heads[:1], [""]), (heads, ["a_", "b_"])):
        model = keras.Model(images, outputs)
        several = [["accuracy"] for _ in outputs]
        model.compile(keras.optimizers.SGD(0.0), loss, metrics=several, weighted_metrics=several)
        model.fit(
            inputs,
            [labels] * len(outputs),
            sample_weight=[weights] * len(outputs),
            batch_size=16,
            shuffle=False,
            verbose=0,
            callbacks=[labkit.KerasRecorder("fit", overwrite=True)],
        )
        rows = labkit.load_run("fit").metrics()
        given = model.predict(inputs, verbose=0)
        for name, shares in zip(names, given if len(outputs) > 1 else [given], strict=True):
            right = (shares.argmax(axis=1) == labels).reshape(3, 16)
            np.testing.assert_allclose(rows[f"{name}accuracy"], right.mean(axis=1), rtol=1e-6)
            weighted = np.average(right, axis=1, weights=weights.reshape(3, 16))
            np.testing.assert_allclose(rows[f"{name}weighted_accuracy"], weighted, rtol=1e-5)
