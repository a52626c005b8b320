"""The length and the recipe of a run, from the data set that it trains on."""

from types import SimpleNamespace

import pytest

from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.config.architectures import ARCHITECTURES
from labkit.config.presets import PRESETS, merged_with_preset
from labkit.config.run import Triggers
from labkit.data import recipe
from labkit.data.recipe import DataFacts, fitting_recipe, requested_config, requested_values
from labkit.errors import InputError
from tests.commands.in_process import config_of

BY_EPOCHS = [name for name in PRESETS if merged_with_preset(name, {}).get("epochs")]
CALL_OF_2017 = {
    "num_layers": 44,
    "train_steps": 80000,
    "train_batch_size": 128,
    "momentum": 0.9,
    "weight_decay": 2e-4,
    "learning_rate": 0.1,
    "batch_norm_decay": 0.997,
    "batch_norm_epsilon": 1e-5,
}


def steps(values, examples: int) -> int:
    config = Config.from_flat(values)
    return config.run.with_steps_for(examples, config.data.train_batch_size).train_steps


@pytest.fixture
def pets(monkeypatch):
    manifest = SimpleNamespace(count=lambda split: 180, image_shape=(64, 64, 3))
    found = {"pets": manifest}
    monkeypatch.setattr(recipe, "find_manifest", lambda directory, name: found.get(name))


@pytest.mark.parametrize("preset", BY_EPOCHS)
def test_a_preset_keeps_its_length_on_cifar10_and_is_bounded_elsewhere(preset):
    values = merged_with_preset(preset, {})
    on_cifar10 = {
        "resnet20_one_cycle": 2460, "resnet20_muon": 7031, "fast": 230, "fast_residual": 765,
    }[preset]  # fmt: skip
    assert abs(steps(values, 45_000) - on_cifar10) <= 2
    assert steps(values, 195) < on_cifar10 / 2
    assert steps(values, 195) >= 100
    assert steps(values, 9_000) <= on_cifar10


@pytest.mark.parametrize("text", ["5", "5:", "0:5", "9:3", "a:b", "1:2:3"])
def test_a_given_number_of_epochs_is_taken_as_it_is_and_limits_that_cannot_be_read_refused(text):
    assert steps(merged_with_preset("resnet20_one_cycle", {"epochs": 2.0}), 1280) == 20
    assert steps(merged_with_preset("resnet20_one_cycle", {"train_steps": 7}), 1280) == 7
    assert steps({"epochs": 3.0, "train_batch_size": 100}, 250) == 8
    with pytest.raises(InputError, match="--epochs is 2.0 beside --train-steps 80000; give one"):
        requested_values(None, {"epochs": 2.0, "train_steps": 80_000})
    with pytest.raises(InputError, match="--steps-range is .*; allowed: FEWEST:MOST"):
        Config.from_flat({"epochs": 1.0, "steps_range": text})


@pytest.mark.parametrize(
    ("examples", "steps"), [(195, 2460), (45_000, 80_000), (45_000, 2460), (1000, 5), (50, 10)]
)
def test_a_run_validates_at_its_end_and_about_twenty_times_at_most(examples, steps):
    triggers = Triggers(Config.from_flat({"train_steps": steps}).run, examples / 128, True)
    due = [step for step in range(1, steps + 1) if triggers.validation(step)]
    assert due[-1] == steps
    assert len(due) == triggers.validations_until(steps) <= 21
    epochs = steps * 128 / examples
    assert len(due) >= min(epochs, 20, steps)


def test_the_recipe_fits_small_and_large_data_sets():
    small, middle, large = (fitting_recipe(DataFacts(examples, 32)) for examples in (180, 9_000, 45_000))
    assert [r["train_batch_size"] for r in (small, middle, large)] == [32, 64, 128]
    assert abs(steps(large, 45_000) - 4220) <= 2
    assert steps(small, 180) < steps(middle, 9_000) < steps(large, 45_000)
    assert fitting_recipe(DataFacts(5, 8))["train_batch_size"] == 4
    assert (small["learning_rate"], small["muon_learning_rate"]) == (0.05, 0.03)  # of a quarter of the batch
    assert (large["learning_rate"], large["muon_learning_rate"]) == (0.2, 0.06)
    for examples in (1, 5, 180, 9_000, 10**7):
        for side in (8, 28, 64, 224, 1024):
            Config.from_flat(fitting_recipe(DataFacts(examples, side)))


def test_the_recipe_follows_what_the_network_sees_of_an_image(pets):
    values, said = requested_values("auto", {"dataset": "pets", "crop_size": 32})
    assert values == {**fitting_recipe(DataFacts(180, 32)), "dataset": "pets", "crop_size": 32}
    assert "images of 32 pixels" in said


@pytest.mark.parametrize("names", [("adam", "Adam"), ("mine.py:mine", "Mine.py:Mine")])
def test_the_learning_rate_does_not_depend_on_how_an_optimizer_is_written(pets, names):
    asked_for = [{"dataset": "pets", "train_batch_size": 128, "optimizer": name} for name in names]
    found = [requested_config("auto", given).optimizer for given in asked_for]
    assert [one.learning_rate for one in found] == [0.002, 0.002]


def test_a_data_set_of_ones_own_gets_the_recipe_that_fits_and_can_see_it(pets):
    values, said = requested_values(None, {"dataset": "pets", "seed": 3})
    assert values == {**fitting_recipe(DataFacts(180, 64)), "dataset": "pets", "seed": 3}
    assert said.startswith("recipe auto, for 180 training images of 64 pixels: --train-batch-size 32")
    given, _ = requested_values("auto", {"dataset": "pets", "num_layers": 8})
    assert given["num_layers"] == 8


@pytest.mark.parametrize(("fold", "examples"), [("1/7", 360 - 52), ("7/7", 360 - 51), ("3/50", 360 - 8)])
def test_a_fold_gets_the_recipe_of_its_own_images(pets, fold, examples):
    values, said = requested_values(None, {"dataset": "pets", "fold": fold})
    assert values == {**fitting_recipe(DataFacts(examples, 64)), "dataset": "pets", "fold": fold}
    assert said.startswith(f"recipe auto, for {examples} training images")


def test_flags_of_2017_and_cifar10_keep_the_defaults_of_2017(pets):
    call = {"dataset": "pets", **CALL_OF_2017}
    assert requested_values(None, call) == (call, "")
    assert requested_values(None, {"dataset": "cifar10"}) == ({"dataset": "cifar10"}, "")
    assert requested_values(None, {}) == ({}, "")


@pytest.mark.parametrize(
    "asked",
    [
        {"dataset": "pets"},
        {"dataset": "pets", "train_batch_size": 128},
        {"dataset": "pets", "epochs": 5.0},
        {"optimizer": "adagrad", "learning_rate": 0.1},  # the default, but not that of this optimizer
    ],
)
def test_a_process_that_is_started_with_a_configuration_trains_just_that(pets, asked):
    for config in (Config.from_flat(asked), Config.from_flat(requested_values(None, asked)[0])):
        _, *flags = train_arguments(config)
        assert config_of(["train", *flags]).flat() == config.flat()


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_the_recipe_takes_every_network(pets, model):
    values, _ = requested_values(None, {"dataset": "pets", "model": model})
    assert Config.from_flat(values).model.model == model
    assert Config.from_flat({**values, "num_layers": None}).model.model == model


def test_single_flags_change_the_recipe_and_not_its_length(pets):
    asked = {"dataset": "pets", "learning_rate": 0.01, "num_layers": 8, "weight_decay": 0.0, "momentum": 0.5}
    values, said = requested_values(None, asked)
    assert values["epochs"] == fitting_recipe(DataFacts(180, 64))["epochs"]
    assert {name: values[name] for name in asked} == asked and said
    smaller, _ = requested_values(None, {"dataset": "pets", "train_batch_size": 8})
    assert smaller["learning_rate"] == 0.0125, "it follows the batch that was chosen"
    passes, _ = requested_values(None, {"dataset": "pets", "train_batch_size": 8, "accumulate_steps": 4})
    assert passes["muon_learning_rate"] == values["muon_learning_rate"], "it follows all images of a step"
    assert fitting_recipe(DataFacts(40, 32), passes=3)["train_batch_size"] == 8, "3 passes of 16 are too many"
    adamw, _ = requested_values(None, {"dataset": "pets", "optimizer": "adamw"})
    assert adamw["learning_rate"] == 0.001 and Config.from_flat(adamw)
    adam, _ = requested_values("fast", {"optimizer": "adam"})
    assert Config.from_flat(adam).optimizer.norm_bias_learning_rate_factor == 1.0, "that is of Muon's rates"
