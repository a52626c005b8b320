"""The configuration: what it refuses, and that it survives JSON."""

import re
from dataclasses import replace

import pytest

from labkit.config import Config, RunConfig, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.data_sets import BUILT_IN
from labkit.config.fields import FieldInfo
from labkit.config.presets import PRESETS, merged_with_preset
from labkit.config.run import Triggers
from labkit.data.recipe import requested_config
from labkit.errors import InputError, short

# The flags of the 2017 cifar10_estimator with their defaults, from its README and main function.
ESTIMATOR_2017 = {
    "data_dir": None,
    "job_dir": None,
    "variable_strategy": "CPU",
    "num_gpus": None,
    "num_layers": 44,
    "train_steps": 80000,
    "train_batch_size": 128,
    "eval_batch_size": 100,
    "momentum": 0.9,
    "weight_decay": 2e-4,
    "learning_rate": 0.1,
    "use_distortion_for_training": True,
    "sync": False,
    "num_intra_threads": 0,
    "num_inter_threads": 0,
    "data_format": "auto",
    "log_device_placement": False,
    "batch_norm_decay": 0.997,
    "batch_norm_epsilon": 1e-5,
}


def test_the_help_names_every_data_set_that_labkit_can_prepare():
    assert set(BUILT_IN) <= set(re.findall(r"\w+", fields_by_name()["dataset"].help))


def test_the_same_command_finds_the_run_of_an_earlier_labkit():
    # As commit e2ecd24 named them. A field that comes later isn't in the hash at its default.
    assert Config().fingerprint() == "78b00474"
    assert Config.from_flat({"optimizer": "adamw", "learning_rate": 0.001}).fingerprint() == "e4d13c84"
    own = [Config.from_flat({"model": f"{folder}/nets.py:build"}).fingerprint() for folder in ("a", "b")]
    assert own[0] == own[1] != Config.from_flat({"model": "a/nets.py:other"}).fingerprint()
    given = Config.from_flat({"model": "a/nets.py:build", "model_arguments": {"width": 3}})
    assert given.fingerprint() != own[0] and given.model.model_arguments == "width=3"


def test_estimator_flags_keep_their_defaults():
    flat = Config().flat() | {"batch_norm_decay": Config().model.norm_decay}
    assert {name: flat[name] for name in ESTIMATOR_2017} == ESTIMATOR_2017


def test_json_round_trip():
    config = Config.from_flat({"num_layers": 20, "gradient_clip_norm": 1.5, "num_gpus": 2, "job_dir": "x"})
    assert Config.from_json(config.to_json()) == config


def test_fields_that_only_an_older_labkit_had_are_refused():
    recorded = Config().to_json()
    recorded["optimizer"]["muon_momentum"] = 0.6
    with pytest.raises(InputError, match="unknown parameter 'muon_momentum'"):
        Config.from_json(recorded)


def outside(info: FieldInfo) -> list[object]:
    """Return values of a field that are none of those allowed, each another way."""
    if info.choices and not info.is_code:
        return ["none of them", 1.5]
    if info.type is bool:
        return [1, "perhaps"]
    if info.type is str:
        return [7]
    below = [] if info.minimum is None else [info.minimum - 1]
    above = [info.below] if info.below is not None else [info.maximum + 1] if info.type is int else []
    return [*below, *above, float("nan"), "0.1", True, 10**30 if info.type is int else float("inf")]


@pytest.mark.parametrize("info", fields_by_name().values(), ids=lambda info: info.name)
def test_any_value_outside_of_a_fields_limits_is_refused_with_flag_value_and_what_is_allowed(info):
    for value in outside(info):
        with pytest.raises(InputError) as refusal:
            Config.from_flat({info.name: value})
        line = str(refusal.value)
        is_number = info.type is float and type(value) in (int, float)
        shown = short(float(value) if is_number else value)
        assert line.startswith(f"{info.flag} is {shown}; allowed: "), line
        assert info.allowed in line and "\n" not in line


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_layers": 21}, ["--num-layers", "21", "6n+2", "20", "26"]),
        ({"num_layers": 44, "block": "bottleneck"}, ["44", "9n+2", "38", "47"]),
        ({"model": "wide_resnet", "num_layers": 20}, ["--num-layers is 20", "wide_resnet: 6n+4", "16 or 22"]),
        ({"model": "vgg", "num_layers": 20}, ["--num-layers is 20", "vgg: 11, 13, 16, 19", "none", "16"]),
        ({"model": "tutorial_cnn", "num_layers": 8}, ["--num-layers is 8", "tutorial_cnn: 5", "none"]),
        (
            {"model": "vgg", "block": "bottleneck"},
            ["--block", "'bottleneck'", "--model vgg: 'basic'", "se_resnet"],
        ),
        (
            {"model": "vgg", "resnet_version": 2},
            ["--resnet-version is 2", "vgg: 1", "--model resnet or --model se_resnet"],
        ),
        ({"width_factor": 4}, ["--width-factor is 4", "resnet: 1", "wide_resnet"]),
        ({"model": "resnet20", "num_layers": 8}, ["--model resnet20 holds --num-layers, too"]),
        (
            {"model": "resnet50"},
            ["--model resnet --num-layers 50 for small images or --model imagenet_resnet50 for larger"],
        ),
        ({"model": "resnet18"}, ["'resnet18'", "write --model imagenet_resnet18 for larger images"]),
        ({"model": "resnat20"}, ["--model", "'resnat20'", "did you mean 'resnet20'?"]),
        ({"model": "resnet21"}, ["--model", "'resnet21'", "6n+2, for example 20 or 26"]),
        ({"model": "imagenet_resnet", "num_layers": 20}, ["--num-layers is 20", "18, 34, 50, 101, 152"]),
        ({"model": "densenet"}, ["--model", "'densenet'", "did you mean 'densenet"]),
        ({"model": "transformer"}, ["'transformer'", "resnet, se_resnet, wide_resnet, vgg"]),
        ({"variable_strategy": "GPU", "num_gpus": 0}, ["--variable-strategy", "GPU", "--num-gpus 0"]),
        (
            {"train_batch_size": 128, "num_gpus": 3, "simulate_missing_gpus": True},
            ["--train-batch-size", "128", "3 replicas", "129"],
        ),
        (
            {"eval_batch_size": 101, "num_gpus": 2, "simulate_missing_gpus": True},
            ["--eval-batch-size", "101", "2 replicas"],
        ),
        (
            {"one_cycle_start": 0.2, "learning_rate_schedule": "cosine"},
            ["--one-cycle-start is 0.2", "with --learning-rate-schedule cosine: 0.0"],
        ),
        ({"one_cycle_end": 0.1}, ["--one-cycle-end is 0.1", "steps: 0.0"]),
        ({"one_cycle_peak": 0.1}, ["--one-cycle-peak is 0.1", "steps: 0.25"]),
        (
            {"cutout_size": 8, "use_distortion_for_training": False},
            ["--cutout-size is 8", "with --no-use-distortion-for-training: 0"],
        ),
        (
            {"flip": "alternating", "use_distortion_for_training": False},
            ["--flip is 'alternating'", "with --no-use-distortion-for-training: 'random'"],
        ),
        (
            {"contrast": 0.2, "use_distortion_for_training": False},
            ["--contrast is 0.2", "with --no-use-distortion-for-training: 0"],
        ),
        (
            {"random_resized_crop": 0.5, "crop_size": 24},
            ["--random-resized-crop is 0.5", "with --crop-size: 0"],
        ),
        (
            {"staircase_factor": 0.5},
            ["--staircase-factor is 0.5", "schedule steps: 0.1", "schedule staircase"],
        ),
        ({"adamw_beta2": 0.9}, ["--adamw-beta2 is 0.9", "with --optimizer sgd: 0.999"]),
        (
            merged_with_preset("resnet20_muon", {"optimizer": "sgd", "muon_learning_rate": 0.1}),
            ["--muon-learning-rate is 0.1; allowed with --optimizer sgd"],
        ),
        ({"warmup_steps": 11, "train_steps": 10}, ["--warmup-steps", "11", "10"]),
        ({"learning_rat": 1.0}, ["learning_rat", "did you mean 'learning_rate'"]),
    ],
)
def test_refusals_name_the_value_and_what_is_allowed(values, words):
    with pytest.raises(InputError) as refusal:
        Config.from_flat(values)
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "flag",
    [
        *(
            {"learning_rate_schedule": schedule}
            for schedule in ("steps", "staircase", "cosine", "one_cycle", "constant")
        ),
        {"optimizer": "sgd"},
        {"use_distortion_for_training": False},
        {"evaluate_test": False},
    ],
    ids=str,
)
def test_a_flag_may_make_a_presets_values_useless(preset, flag):
    Config.from_flat(merged_with_preset(preset, flag))


def test_identity_is_what_is_trained():
    config = Config()
    assert config.replace({"log_every_steps": 7, "num_gpus": 2}).fingerprint() == config.fingerprint()
    changed = config.replace({"learning_rate": 0.2, "seed": 1})
    assert changed.fingerprint() != config.fingerprint()
    assert config.differences(changed) == [
        "--learning-rate is 0.1 there, 0.2 here",
        "--seed is 0 there, 1 here",
    ]


@pytest.mark.parametrize(
    ("values", "depth"),
    [
        ({}, 44),
        ({"block": "bottleneck"}, 47),
        ({"model": "se_resnet"}, 20),
        ({"model": "wide_resnet", "width_factor": 4}, 16),
        ({"model": "vgg"}, 16),
        ({"model": "vgg", "num_layers": None}, 16),
        ({"model": "vgg", "num_layers": 11}, 11),
        ({"model": "tutorial_cnn"}, 5),
    ],
)
def test_a_depth_that_nobody_names_is_the_architectures_own_and_recorded(values, depth):
    config = Config.from_flat(values)
    assert config.model.depth == depth
    assert config.to_json()["model"]["num_layers"] == depth
    assert Config.from_json(config.to_json()) == config
    assert config.fingerprint() == Config.from_flat({**values, "num_layers": depth}).fingerprint()


def test_another_architecture_has_its_own_depth_unless_one_was_named():
    config = Config().replace({"model": "vgg"})
    assert config.model.depth == 16
    assert config.replace({"model": "se_resnet"}).model.depth == 20
    assert config.replace({"model": "resnet", "block": "bottleneck"}).model.depth == 47
    named = Config.from_flat({"num_layers": 56})
    assert named.replace({"model": "se_resnet"}).model.depth == 56
    with pytest.raises(InputError, match="--num-layers is 56; allowed for vgg: 11"):
        named.replace({"model": "vgg"})


# ---- what is due after a step ---------------------------------------------------------------------------

RUN = RunConfig(train_steps=10, validate_every_steps=4, checkpoint_every_steps=3)


def steps(asked) -> list[int]:
    return [step for step in range(1, 11) if asked(step)]


@pytest.mark.parametrize(
    ("field", "every", "expected"),
    [
        ("validation", 4, [4, 8, 10]),
        ("validation", 0, [10]),  # only at the end
        ("validation", None, [3, 5, 8, 10]),  # after each epoch of two and a half steps
        ("checkpoint", 3, [3, 6, 9, 10]),
        ("checkpoint", None, [10]),
    ],
)
def test_validations_and_checkpoints_are_due_as_asked_and_at_the_end(field, every, expected):
    name = {"validation": "validate_every_steps", "checkpoint": "checkpoint_every_steps"}[field]
    triggers = Triggers(replace(RUN, **{name: every}), 2.5, True)
    assert steps(getattr(triggers, field)) == expected
    assert steps(Triggers(RUN, 2.5, False).validation) == [], "nothing to validate on"


@pytest.mark.parametrize(
    ("step", "last", "expected"), [(0, 2, 2), (0, 9, 3), (3, 9, 4), (8, 99, 9), (9, 99, 10)]
)
def test_no_step_is_started_beyond_the_first_with_something_due(step, last, expected):
    assert Triggers(RUN, 2.5, True).first(step, last) == expected


@pytest.mark.parametrize("preset", PRESETS)
def test_the_spelling_of_an_optimizer_changes_nothing_else(preset):
    one, other = (requested_config(preset, {"optimizer": name}) for name in ("sgd", "SGD"))
    assert one == other


def test_a_preset_is_also_a_file_of_values(tmp_path):
    file = tmp_path / "best.json"
    file.write_text('{"lr": 0.3, "momentum": 0.5}')
    assert merged_with_preset(str(file), {"momentum": 0.8}) == {"learning_rate": 0.3, "momentum": 0.8}
    for text, told in (
        ("[1]", "no JSON object"),
        ("{", "can't be read"),
        ('{"rate": 1}', "unknown parameter"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=told):
            merged_with_preset(str(file), {})
    file.write_text('{"optimizer": "adam", "momentum": 0.5}')
    with pytest.raises(InputError, match="^--momentum is 0.5; allowed with --optimizer adam"):
        Config.from_flat(merged_with_preset(str(file), {}))
    file.unlink()
    with pytest.raises(InputError, match="can't be read: No such file or directory$"):
        merged_with_preset(str(file), {})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("resnet8", {"num_layers": 8}),
        ("resnet20-v2-bottleneck", {"num_layers": 20, "resnet_version": 2, "block": "bottleneck"}),
        ("wide_resnet16_4", {"model": "wide_resnet", "num_layers": 16, "width_factor": 4.0}),
        ("vgg11", {"model": "vgg", "num_layers": 11}),
        ("imagenet_resnet50-v1.5", {"model": "imagenet_resnet", "bottleneck_stride": "second"}),
        ("mobilenetv2", {"model": "keras_application", "application": "MobileNetV2"}),
    ],
)
def test_a_networks_name_stands_for_its_fields(name, fields):
    assert Config.from_flat({"model": name}) == Config.from_flat(fields)
    assert Config.from_flat(fields | {"model": name}) == Config.from_flat(fields), "said twice"
    assert model_name(Config.from_flat({"model": name}).model) == name
