"""Mixup, dropout, AdamW, averaged weights, colours and crops: a stop changes nothing, nor do two replicas."""

import json
import shutil

import numpy as np
import pytest

import labkit
from tests.properties.harness import assert_bit_equal, checkpoint_values, losses, train

STEPS, SAVED = 12, 4
FIELDS = {
    "num_layers": 8,
    "train_steps": STEPS,
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "weight_decay": 0.05,
    "weight_decay_of": "kernels",
    "ema_decay": 0.9,
    "dropout_rate": 0.3,
    "mixup_alpha": 1.0,
    "crop_size": 24,
    "crop_padding": 0,
    "brightness": 63.0,
    "contrast": 0.8,
    "standardization": "per_image",
    "checkpoint_every_steps": 2,
    "keep_checkpoints": STEPS,
    "validate_every_steps": STEPS,
    # Shows what is rounding and what is not, in the comparison of one and two replicas.
    "precision": "float64",
    "sync_batch_norm": True,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop."""
    run = tmp_path_factory.mktemp("recipe") / "whole"
    train(run, **FIELDS)
    return run


def test_going_on_equals_no_interruption(whole):
    stopped = whole.with_name("stopped")
    shutil.copytree(whole, stopped)
    for place in (stopped / "checkpoints").glob("step-*"):
        if int(place.name.removeprefix("step-")) > SAVED:
            shutil.rmtree(place)
    (stopped / "status.json").unlink()
    train(stopped, **FIELDS)
    values = checkpoint_values(whole, STEPS)
    assert_bit_equal(values, checkpoint_values(stopped, STEPS))
    assert losses(whole) == losses(stopped)
    assert any(name.startswith("averaged/") for name in values)


def test_two_replicas_equal_one(whole):
    two = whole.with_name("two")
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True, "variable_strategy": "GPU"}
    train(two, **FIELDS | replicas)
    apart = np.abs(np.subtract(losses(whole), losses(two)))
    assert 0 < apart.max() < 1e-9
    ours, theirs = (checkpoint_values(run, STEPS) for run in (whole, two))
    for name, value in ours.items():
        if name.startswith("averaged/"):
            np.testing.assert_allclose(theirs[name], value, atol=1e-8)


def test_a_replayed_step_has_the_loss_of_its_row(whole):
    made = labkit.load_run(whole).replay(STEPS)
    assert made.loss_is_equal
    np.testing.assert_allclose(made.losses.mean(), made.metrics["loss"], rtol=1e-6)


def test_evaluation_and_predictions_use_the_average(whole):
    run = labkit.load_run(whole)
    recorded = json.loads((whole / "predictions" / "test.json").read_text())
    again = run.evaluate("test")
    assert again["accuracy"] == recorded["accuracy"]
    np.testing.assert_allclose(again["loss"], recorded["loss"], rtol=1e-6)

    from labkit.analysis.network import load_network
    from labkit.data.loading import load_split

    network = load_network(run, str(STEPS))
    images, labels = load_split(network.manifest, "test")
    found = (network.logits(images).argmax(axis=1) == labels).mean()
    assert found == pytest.approx(recorded["accuracy"], abs=1e-9)
    averaged = network.model.get_layer("logits").kernel.numpy()
    values = checkpoint_values(whole, STEPS)
    kernels = {name: value for name, value in values.items() if value.shape == averaged.shape}
    equal = [name for name, value in kernels.items() if np.allclose(value, averaged, atol=1e-6)]
    assert equal and all(name.startswith("averaged/") for name in equal)
