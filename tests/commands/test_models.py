"""``labkit models``: the list and one model, for people and for programs."""

import json

import pytest

from labkit.commands import main as cli
from labkit.commands import models
from labkit.config.architectures import KnownModel


@pytest.fixture
def two_known(monkeypatch):
    known = (KnownModel("resnet8", 0.875, "a paper"), KnownModel("wide_resnet10_0.5"))
    monkeypatch.setattr(models, "KNOWN_MODELS", known)


def test_the_list_counts_what_is_built(two_known, capsys):
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # 78,042 parameters; 3 + 2 · 2 + (2 + 4) + (4 + 8) pixels.
    assert any(
        line.split() == ["resnet8", "0.08", "M", "12.24", "M", "25×25", "87.50%", "(1)"] for line in lines
    )
    assert any(line.split()[:1] == ["wide_resnet10_0.5"] and line.split()[-1] == "-" for line in lines)
    assert "(1) a paper" in lines


def test_the_list_as_json(two_known, capsys):
    assert cli.main(["models", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], first["accuracy"], first["accuracy_source"]) == ("resnet8", 0.875, "a paper")
    assert first["parameters"] == sum(stage["parameters"] for stage in first["stages"])
    assert (second["accuracy"], second["accuracy_source"]) == (None, None)
    assert second["config"] == {
        "model": "wide_resnet", "num_layers": 10, "width_factor": 0.5, "resnet_version": 1, "block": "basic",
        "application": "MobileNetV2",
    }  # fmt: skip


def test_one_model_by_stages(capsys):
    assert cli.main(["models", "tutorial_cnn"]) == 0
    shown = capsys.readouterr().out
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet21", ["'resnet21'", "6n+2", "20 or 26"]),
        ("vgg12", ["'vgg12'", "11, 13, 16, 19"]),
        ("resnet_20", ["'resnet_20'", "did you mean 'resnet20'"]),
        ("wide_resnet10_1000", ["--width-factor", "1000", "below 100"]),
    ],
)
def test_bad_names_are_one_line_before_anything_is_loaded(name, words, monkeypatch, capsys):
    monkeypatch.setattr(models, "_import_without_gpus", lambda: pytest.fail("TensorFlow was imported"))
    assert cli.main(["models", name]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    for word in words:
        assert word in shown.err
