"""``labkit models``: the list and one model, for people and for programs."""

import json
from pathlib import Path

import pytest

from labkit.commands import main as cli
from labkit.commands import models
from labkit.config import ModelConfig
from labkit.config.architectures import parse_model_name
from labkit.config.known_models import KNOWN_MODELS
from labkit.parts.code import named_object
from tests.commands.in_process import refused

COUNTS = ("parameters", "multiply_adds", "receptive_field")


@pytest.fixture
def without_tensorflow(monkeypatch):
    monkeypatch.setattr(models, "import_without_gpus", lambda: pytest.fail("TensorFlow was imported"))


def test_the_list_is_shown_without_building_a_network(without_tensorflow, capsys):
    assert cli.main(["models"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["resnet20", "0.27", "M", "40.55", "M", "81×81", "91.25%", "(1)"] in lines
    assert ["(1)", "He", "et", "al.", "2015,", "table", "6"] in lines
    assert [line[-1] for line in lines if line[:1] == ["wide_resnet16_4"]] == ["-"]


def test_the_list_as_json(without_tensorflow, capsys):
    assert cli.main(["models", "--json"]) == 0
    found = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert found.keys() == {known.name for known in KNOWN_MODELS}
    assert (found["vgg11"]["accuracy"], found["vgg11"]["parameters"]) == (0.9279, 9_228_362)
    assert found["wide_resnet16_4"]["accuracy_source"] is None
    assert found["wide_resnet16_4"]["config"] == {
        "model": "wide_resnet", "num_layers": 16, "width_factor": 4.0, "resnet_version": 1, "block": "basic",
        "application": "MobileNetV2", "bottleneck_stride": "first",
    }  # fmt: skip


DEEP = ("resnet110", "resnet56", "resnet44", "se_resnet56", "imagenet_", "mobilenet", "vit")  # slow to build


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(known, id=known.name, marks=[pytest.mark.long] * known.name.startswith(DEEP))
        for known in KNOWN_MODELS
    ],
)
def test_the_counts_that_are_kept_are_those_of_the_networks(known):
    built = models._built(known.name, ModelConfig(**parse_model_name(known.name)))
    listed = models._listed(known)
    assert {name: listed[name] for name in COUNTS} == {name: built[name] for name in COUNTS}


def test_one_model_by_stages(capsys):
    assert cli.main(["models", "tutorial_cnn"]) == 0
    shown, said = capsys.readouterr()
    assert "building tutorial_cnn" in said
    assert "two convolutions, two dense layers" in shown
    stages = [line.split()[:4] for line in shown.splitlines() if line.strip().startswith(("32×32 ", "dense"))]
    assert stages == [["32×32", "64", "1", "4,864"], ["dense", "10", "3", "1,649,098"]]
    assert "receptive field 19×19 pixels" in shown
    assert "86.00%" in shown and "24x24" in shown


def test_one_model_as_json(capsys):
    assert cli.main(["models", "se_resnet8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["receptive_field"] == [25, 25]
    assert found["accuracy"] is None
    assert "1709.01507" in found["paper"]


def test_a_network_of_ones_own_with_its_arguments(capsys):
    own = f"{Path(__file__).parents[1] / 'own_nets.py'}:functional"
    assert cli.main(["models", own, "--model-arguments", "width=16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    convolutions = 3 * 9 * 16 + 16 * 9 * 16 + 16
    assert found["parameters"] == convolutions + 2 * 16 + 16 * 10 + 10
    assert found["arguments"] == "width=16"
    assert cli.main(["models", own, "--model-arguments", "widht=16"]) == 2
    assert "'widht'" in capsys.readouterr().err.splitlines()[-1]


def test_what_a_file_makes_beside_its_network_can_be_used_afterwards(tmp_path, capsys):
    path = tmp_path / "nets.py"
    path.write_text(
        "import keras\n\nTOP3 = keras.metrics.TopKCategoricalAccuracy(3)\n\n\n"
        "def net(image_shape, num_classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    assert cli.main(["models", f"{path}:net"]) == 0
    metric = named_object("--metrics", f"{path}:TOP3")
    metric.update_state([[0.0, 1.0]], [[0.0, 1.0]])
    assert float(metric.result()) == 1.0


def test_arguments_need_a_network_of_ones_own(without_tensorflow):
    assert "network of your own" in refused("models", "resnet8", "--model-arguments", "width=16")
    assert "name it first" in refused("models", "--model-arguments", "width=16")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet21", ["'resnet21'", "6n+2", "20 or 26"]),
        ("resnet_20", ["'resnet_20'", "did you mean 'resnet20'"]),
        ("wide_resnet10_1000", ["--width-factor", "1000", "below 100"]),
    ],
)
def test_bad_names_are_one_line_before_anything_is_loaded(name, words, without_tensorflow):
    line = refused("models", name)
    assert all(word in line for word in words), line
