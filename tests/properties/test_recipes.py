"""Whole recipes: a stop changes nothing, nor do two replicas, and each does what it says.

``fast``: Muon, smaller images first, cutout. ``averaged``: mixup, dropout, AdamW, averaged weights, colours,
crops. ``transfer``: frozen layers that thaw stage by stage, from a source that is gone. ``compiled``: an
activation that XLA compiles, as it does not in float64.
"""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import labkit
from app.ask.process import Message
from app.network_process.answers import Answers
from labkit.analysis.network import grad_cam, gradient_map, integrated_gradients, load_network
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory
from tests.properties.harness import assert_same_run, checkpoint_values, killed_behind, losses, train
from tests.properties.harness import labkit as command

COMMON = {
    "checkpoint_every_steps": 2,
    "keep_checkpoints": 20,
    # Shows what is rounding and what is not, in the comparison of one and two replicas.
    "precision": "float64",
    "sync_batch_norm": True,
}
RECIPES = {
    "fast": {
        "model": "fast",
        "num_layers": None,
        "width_factor": 0.125,
        "train_steps": 12,
        "optimizer": "muon",
        "learning_rate": 0.5,
        "norm_bias_learning_rate_factor": 4.0,
        "progressive_resizing": "16:0.25,24:0.5",  # 16 pixels before step 3, 24 before step 6
        "cutout_size": 6,
        "flip": "alternating",
        "crop_padding": 2,
        "crop_padding_mode": "reflect",
        "label_smoothing": 0.2,
        "validate_every_steps": 0,
        "evaluate_test": False,
    },
    "averaged": {
        "train_steps": 12,
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
        "validate_every_steps": 12,
    },
    "transfer": {
        "train_steps": 20,
        "freeze": "stem,stage1,stage2",
        "unfreeze_every_steps": 8,  # stage2 thaws at 8, stage1 at 16, the stem never
        "head_learning_rate_factor": 4.0,
        "validate_every_steps": 0,
        "evaluate_test": False,
    },
    "compiled": {
        "model": "fast",
        "num_layers": None,
        "width_factor": 0.125,
        "activation": "gelu",
        "precision": "float32",
        "learning_rate": 1e-3,  # a higher one lets the rounding of float32 grow
        "train_steps": 8,
        "progressive_resizing": "24:0.5",
        "validate_every_steps": 0,
        "evaluate_test": False,
    },
}
ROUNDING = {"compiled": 1e-4}  # of a loss, where it isn't that of float64
# Among smaller images, and in the middle of thawing.
SAVED = {"fast": 4, "averaged": 4, "transfer": 10, "compiled": 4}
LAST = {name: fields["train_steps"] for name, fields in RECIPES.items()}

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def fields_of(folder) -> Callable[[str], dict[str, object]]:
    """Return what gives the fields of a recipe; transfer's data set has other classes and few images."""

    @functools.cache
    def made(recipe: str) -> dict[str, object]:
        fields = COMMON | RECIPES[recipe]
        if recipe != "transfer":
            return fields
        few = {"classes": ["star", "ring", "bars"], "train_examples": 60, "validation_size": 30}
        prepare("shapes", folder / "few", **few)
        return fields | {"data_dir": folder / "few", "start_from": folder / "source"}

    return made


@pytest.fixture(scope="module")
def whole(folder, fields_of) -> Callable[[str], Path]:
    """Return what gives the run of a recipe without a stop; each trains once. Transfer's source is gone."""

    @functools.cache
    def made(recipe: str) -> Path:
        run, source = folder / recipe / "whole", folder / "source"
        run.parent.mkdir()
        if recipe == "transfer":
            train(source, train_steps=10, evaluate_test=False)
        train(run, **fields_of(recipe))
        if recipe == "transfer":
            source.rename(folder / "moved")
        return run

    return made


@pytest.mark.parametrize("recipe", RECIPES)
def test_going_on_equals_no_interruption(whole, fields_of, recipe):
    stopped = killed_behind(whole(recipe), SAVED[recipe])
    train(stopped, **fields_of(recipe))
    assert_same_run(whole(recipe), stopped, LAST[recipe])


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_replicas_equal_one(whole, fields_of, recipe):
    run = whole(recipe)
    # Where the source is gone, from the state that it gave.
    two = killed_behind(run, 0, "two") if recipe == "transfer" else run.with_name("two")
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True, "variable_strategy": "GPU"}
    train(two, **fields_of(recipe) | replicas)
    apart = np.abs(np.subtract(losses(run), losses(two)))
    assert 0 < apart.max() < ROUNDING.get(recipe, 1e-9), apart
    ours, theirs = (checkpoint_values(each, LAST[recipe]) for each in (run, two))
    for name, value in ours.items():
        if name.startswith("averaged/"):
            np.testing.assert_allclose(theirs[name], value, atol=1e-8)
    if recipe == "transfer":
        assert len(same(own(checkpoint_values(run, 0)), theirs)) == 5


# ---- fast ----------------------------------------------------------------------------------------------


def test_kernels_keep_their_length(whole):
    values = checkpoint_values(whole("fast"), LAST["fast"] - 2)
    kernels = [value for name, value in values.items() if name.startswith("model/") and value.ndim == 4]
    trained = [kernel for kernel in kernels if kernel.shape[0] == 3]
    assert len(trained) == 6
    for kernel in trained:  # the length before the last update, which turns it
        assert np.sqrt((kernel**2).sum() / kernel.shape[-1]) == pytest.approx(1.0, abs=0.35)


# ---- transfer ------------------------------------------------------------------------------------------


def own(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what of a checkpoint is the model's: weights and moving averages."""
    return {name: value for name, value in values.items() if name.startswith("model/")}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> set[str]:
    """Return the names of the arrays that are equal in both, bit by bit."""
    return {name for name in first if first[name].tobytes() == second[name].tobytes()}


def test_the_first_state_is_the_source_but_for_the_head(whole, folder):
    run = whole("transfer")
    first, source = own(checkpoint_values(run, 0)), own(checkpoint_values(folder / "moved", 10))
    assert first.keys() == source.keys()
    differing = [name for name, value in first.items() if not np.array_equal(value, source[name])]
    assert len(differing) == 2 and {first[name].shape[-1] for name in differing} == {3}
    report = json.loads((run / "transfer.json").read_text())
    assert len(report["loaded"]) == len(first) - 2 and report["step"] == 10
    assert report["replaced"] == ["logits/kernel", "logits/bias"]


def test_each_stage_changes_from_its_step_on_and_the_stem_never(whole):
    states = [own(checkpoint_values(whole("transfer"), step)) for step in range(0, LAST["transfer"], 2)]
    changed = [now.keys() - same(before, now) for before, now in itertools.pairwise(states)]
    counts = [len(names) for names in changed]
    # Two convolutions and two normalizations of four a stage, and two of the head.
    assert counts == [12] * 4 + [22] * 4 + [32]
    # The stem: a convolution and a normalization, of all 37.
    assert len(states[0].keys() - set().union(*changed)) == 5


# ---- averaged ------------------------------------------------------------------------------------------


def test_a_replayed_step_has_the_loss_of_its_row(whole):
    made = labkit.load_run(whole("averaged")).replay(LAST["averaged"])
    assert made.loss_is_equal
    np.testing.assert_allclose(made.losses.mean(), made.metrics["loss"], rtol=1e-6)


def test_evaluation_and_predictions_use_the_average(whole):
    run = labkit.load_run(whole("averaged"))
    recorded = json.loads((whole("averaged") / "predictions" / "test.json").read_text())
    again = labkit.evaluate(run)
    assert again["accuracy"] == recorded["accuracy"]
    np.testing.assert_allclose(again["loss"], recorded["loss"], rtol=1e-6)

    network = load_network(run, str(LAST["averaged"]))
    images, labels = load_split(network.manifest, "test")
    found = (network.logits(images).argmax(axis=1) == labels).mean()
    assert found == pytest.approx(recorded["accuracy"], abs=1e-9)
    averaged = network.model.get_layer("logits").kernel.numpy()
    values = checkpoint_values(whole("averaged"), LAST["averaged"])
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

    answers = Answers(RunDirectory(whole("averaged")), LAST["averaged"])
    for shown in (images[:3], images[:3, 4:28, 4:28]):
        question = Message(
            {"question": "predict", "step": LAST["averaged"]}, {"images": np.ascontiguousarray(shown)}
        )
        _, arrays = answers.answer(question)
        np.testing.assert_allclose(arrays["probabilities"], network.probabilities(images[:3]), atol=1e-5)


def test_an_exported_network_crops_and_standardizes_by_itself(whole, tmp_path):
    for more in ([], ["--standardized-input"]):
        path = tmp_path / f"network{len(more)}.keras"
        assert command("export", str(whole("averaged")), "--output", str(path), "--check", *more) == 0
        about = json.loads(path.with_name(f"{path.name}.json").read_text())
        assert about["check"]["passed"]
        assert about["input"]["shape"][1:] == ([24, 24, 3] if more else [32, 32, 3])
