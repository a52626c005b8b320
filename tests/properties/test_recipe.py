"""Mixup, dropout, AdamW, averaged weights, colours and crops: a stop changes nothing, nor do two replicas."""

import json
import shutil

import numpy as np
import pytest

import labkit
from app.ask.process import Message
from app.network_process.answers import Answers
from labkit.analysis.network import load_network
from labkit.analysis.saliency import grad_cam, gradient_map, integrated_gradients
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory
from tests.properties.harness import assert_bit_equal, checkpoint_values, losses, train
from tests.properties.harness import labkit as command

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
    again = labkit.evaluate(run)
    assert again["accuracy"] == recorded["accuracy"]
    np.testing.assert_allclose(again["loss"], recorded["loss"], rtol=1e-6)

    network = load_network(run, str(STEPS))
    images, labels = load_split(network.manifest, "test")
    found = (network.logits(images).argmax(axis=1) == labels).mean()
    assert found == pytest.approx(recorded["accuracy"], abs=1e-9)
    averaged = network.model.get_layer("logits").kernel.numpy()
    values = checkpoint_values(whole, STEPS)
    kernels = {name: value for name, value in values.items() if value.shape == averaged.shape}
    equal = [name for name, value in kernels.items() if np.allclose(value, averaged, atol=1e-6)]
    assert equal and all(name.startswith("averaged/") for name in equal)

    # The network sees the middle of an image: the border has no part in a prediction.
    image = images[0].copy()
    expected = network.probabilities(image[None])
    for method in (gradient_map, integrated_gradients, grad_cam):
        found = method(network, image, 3)
        assert found.shape == (32, 32) and np.abs(found[4:28, 4:28]).max() > 0
        found[4:28, 4:28] = 0
        assert not found.any()
    image[:4] = image[:, 28:] = 255
    np.testing.assert_array_equal(network.probabilities(image[None]), expected)
    image[4, 4] = 255 - image[4, 4]
    assert np.abs(network.probabilities(image[None]) - expected).max() > 0

    answers = Answers(RunDirectory(whole), STEPS)
    for shown in (images[:3], images[:3, 4:28, 4:28]):
        question = Message({"question": "predict", "step": STEPS}, {"images": np.ascontiguousarray(shown)})
        _, arrays = answers.answer(question)
        np.testing.assert_allclose(arrays["probabilities"], network.probabilities(images[:3]), atol=1e-5)


def test_an_exported_network_crops_and_standardizes_by_itself(whole, tmp_path):
    for more in ([], ["--standardized-input"]):
        path = tmp_path / f"network{len(more)}.keras"
        assert command("export", str(whole), "--output", str(path), "--check", *more) == 0
        about = json.loads(path.with_name(f"{path.name}.json").read_text())
        assert about["check"]["passed"]
        assert about["input"]["shape"][1:] == ([24, 24, 3] if more else [32, 32, 3])
