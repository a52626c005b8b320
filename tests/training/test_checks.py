"""What a data set or a network's layers can't give is refused before any work."""

from types import SimpleNamespace

import pytest

from labkit.config import Config
from labkit.config.presets import merged_with_preset
from labkit.errors import InputError
from labkit.optim.network import build_model_to_train
from labkit.training.checks import check_fits

MANIFEST = SimpleNamespace(
    count=lambda split: 1000,
    num_classes=3,
    image_shape=(32, 32, 3),
    dataset="shapes",
    directory="/data/shapes",
    source={"kind": "generated"},
    splits={},
)


@pytest.mark.parametrize(
    ("flag", "most", "fields"),
    [
        ("--train-batch-size", 1000, lambda value: {"train_batch_size": value}),
        ("--train-batch-size", 333, lambda value: {"train_batch_size": value, "accumulate_steps": 3}),
        ("--crop-size", 32, lambda value: {"crop_size": value}),
        ("--cutout-size", 31, lambda value: {"cutout_size": value}),
        ("--cutout-size", 23, lambda value: {"cutout_size": value, "crop_size": 24}),
        ("--progressive-resizing", 31, lambda value: {"progressive_resizing": f"{value}:0.5"}),
    ],
)
def test_the_most_is_accepted_and_one_more_refused(flag, most, fields):
    check_fits(Config.from_flat(fields(most)), MANIFEST)
    with pytest.raises(InputError, match=f"^{flag} .*{most + 1}.*allowed.*at most {most}"):
        check_fits(Config.from_flat(fields(most + 1)), MANIFEST)


def test_smaller_images_of_a_preset_are_refused_with_the_flag_that_leaves_images_whole():
    small = SimpleNamespace(**{**vars(MANIFEST), "image_shape": (28, 28, 1)})
    with pytest.raises(InputError, match="^--progressive-resizing has 28 .* --progressive-resizing none, "):
        check_fits(Config.from_flat(merged_with_preset("resnet20_muon", {})), small)
    check_fits(Config.from_flat(merged_with_preset("resnet20_muon", {"progressive_resizing": None})), small)


def test_padding_has_as_many_pixels_as_there_are_to_mirror():
    def padded(pixels: int, mode: str = "constant") -> Config:
        return Config.from_flat({"crop_padding": pixels, "crop_padding_mode": mode})

    small = SimpleNamespace(**{**vars(MANIFEST), "image_shape": (8, 8, 3)})
    check_fits(padded(8), small)
    check_fits(padded(7, "reflect"), small)
    with pytest.raises(InputError, match="--crop-padding has 8 pixels; allowed .* at most 7"):
        check_fits(padded(8, "reflect"), small)


def test_early_stopping_and_a_choice_of_the_best_need_a_validation_split():
    def prepared(command: str, **source: str) -> SimpleNamespace:
        return SimpleNamespace(
            **vars(MANIFEST) | {"dataset": "mine", "source": source, "prepare_command": command}
        )

    given, corrected = prepared("", kind="examples"), prepared("correct", kind="corrected", location="old")
    for manifest, way in (
        (
            prepared("labkit data prepare --images X", kind="images"),
            r"\w+ data .* --images X --validation-size N",
        ),
        (corrected, "prepare old with a --validation-size, then correct"),
        (given, r"labkit\.prepare_data\('mine', train=\.\.\., validation_size=N\) in Python"),
    ):
        words = f"--early-stopping-patience is 3, but {manifest.dataset} .* without a validation .*: {way}$"
        with pytest.raises(InputError, match=words):
            check_fits(Config.from_flat({"early_stopping_patience": 3}), manifest)
        with pytest.raises(InputError, match=f"^--best-by is loss, .*: {way}$"):
            check_fits(Config.from_flat({"best_by": "loss"}), manifest)
    with pytest.raises(InputError, match="--early-stopping-patience is 3 with --validate-every-steps 0"):
        Config.from_flat({"early_stopping_patience": 3, "validate_every_steps": 0})


@pytest.mark.parametrize("steps", ["3", "0:2", "4:3", "1:11", "a:b", "1:2:3", "-1:2"])
def test_profiled_steps_are_two_steps_of_the_run(steps):
    assert Config.from_flat({"profile_steps": "3:10", "train_steps": 10}).run.profiled_steps == (3, 10)
    with pytest.raises(InputError, match=f"--profile-steps is '{steps}'; allowed: FIRST:LAST"):
        Config.from_flat({"profile_steps": steps, "train_steps": 10})


def built(model: str = "resnet", **values):
    """Return which layers are frozen when."""
    values |= {"model": model, "num_layers": 8 if model == "resnet" else None}
    return build_model_to_train(Config.from_flat(values), MANIFEST, "channels_last")[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"model": "tutorial_cnn", "progressive_resizing": "16:0.5"},
            "--progressive-resizing has images of 16",
        ),
        ({"model": "tutorial_cnn", "optimizer": "muon"}, "tutorial_cnn has none; choose --optimizer sgd"),
        ({"freeze": "stage9"}, "--freeze 'stage9' fits no stage"),
        ({"freeze": "logits", "head_learning_rate_factor": 5.0}, "--head-learning-rate-factor is 5.0 with"),
    ],
)
def test_what_a_network_cannot_do_is_refused(values, words):
    with pytest.raises(InputError, match=words) as refusal:
        built(**values)
    assert "\n" not in str(refusal.value)


def test_a_head_that_thaws_or_was_never_frozen_has_a_rate_of_its_own():
    thawing = {"freeze": "logits,stem", "unfreeze_every_steps": 5, "head_learning_rate_factor": 5.0}
    built(train_steps=6, **thawing)
    with pytest.raises(InputError, match="to the end"):
        built(train_steps=5, **thawing)
    assert built(freeze="stem", head_learning_rate_factor=5.0).at(0)
    built(freeze="logits")
