"""Networks and optimizers of one's own keep every guarantee: resume, replicas, replay, export."""

import functools
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory
from tests.properties.harness import checkpoint_values, killed_behind, labkit, losses, metrics, train

OWN = Path(__file__).parents[1] / "own_nets.py"
NETWORKS = ("functional", "sequential", "subclassed", "application", "mlp")
STEPS, SAVED = 12, 6
FIELDS = {
    "num_layers": None,
    "batch_norm_decay": None,
    "train_steps": STEPS,
    "checkpoint_every_steps": SAVED,
    "keep_checkpoints": 5,
    "learning_rate": 0.0002,
    "learning_rate_schedule": "constant",
    "train_batch_size": 32,
    "precision": "float64",  # shows what is rounding and what is not
    "sync_batch_norm": True,
    "validate_every_steps": 0,
}
LONG = pytest.mark.long
OPTIMIZERS = {
    "own": {"num_layers": 8, "optimizer": f"{OWN}:Signum", "optimizer_arguments": "beta=0.8"},
    "adam": {"num_layers": 8, "optimizer": "adam", "weight_decay_mode": "decoupled"},
    "nadam": {"num_layers": 8, "optimizer": "nadam", "gradient_clip_norm": 1.0},
}
EACH = ["functional", *(pytest.param(name, marks=LONG) for name in NETWORKS[1:])]

pytestmark = pytest.mark.slow


def fields_of(name: str) -> dict:
    return FIELDS | OPTIMIZERS.get(name, {"model": f"{OWN}:{name}"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return what gives the run of a network, or of an optimizer; each trains once."""

    @functools.cache
    def made(name: str) -> Path:
        run = tmp_path_factory.mktemp(name) / "run"
        train(run, **fields_of(name))
        return run

    return made


@pytest.mark.long
def test_weights_without_a_gradient_stay_as_they_are(tmp_path):
    own = {"model": f"{OWN}:without_gradient", "weight_decay": 0.0, "checkpoint_every_steps": 1}
    train(tmp_path / "run", **FIELDS | own)
    run = RunDirectory(tmp_path / "run")
    first, last = (checkpoint_values(run.path, step) for step in (run.checkpoint_steps()[0], STEPS))
    changed = {first[name].shape: not np.array_equal(first[name], last[name]) for name in first}
    assert (changed[3, 3, 3, 4], changed[3600, 10]) == (False, True)


@pytest.mark.long
def test_a_layer_of_another_precision_is_trained_by_adamw(tmp_path):
    own = {"model": f"{OWN}:in_float64_inside", "precision": "float32", "optimizer": "adamw"}
    train(tmp_path / "run", **FIELDS | own)
    assert len(losses(tmp_path / "run")) == STEPS


@pytest.mark.parametrize("name", [*EACH, *(pytest.param(name, marks=LONG) for name in ("own", "nadam"))])
def test_going_on_equals_no_interruption(whole, name):
    stopped = killed_behind(whole(name), SAVED)
    train(stopped, **fields_of(name))
    assert losses(whole(name)) == losses(stopped)
    first, second = (checkpoint_values(run, STEPS) for run in (whole(name), stopped))
    assert first.keys() == second.keys() and len(first) > 4
    assert not [key for key in first if "_kept" in key]  # nothing is saved twice
    assert not [key for key, value in first.items() if value.tobytes() != second[key].tobytes()]


@LONG
@pytest.mark.parametrize("name", ["subclassed", "mlp", *OPTIMIZERS])
def test_two_replicas_equal_one(whole, name, tmp_path):
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True}
    train(tmp_path / "two", **fields_of(name) | replicas)
    apart = np.abs(np.subtract(losses(whole(name)), losses(tmp_path / "two")))
    assert apart.max() < 1e-7


@LONG
@pytest.mark.parametrize("name", [*NETWORKS, *OPTIMIZERS])
def test_a_replayed_step_has_the_loss_of_its_row(whole, name, tmp_path):
    run, step = whole(name), SAVED + 2
    assert labkit("replay", str(run), "--step", str(step), "--output", str(tmp_path / "made")) == 0
    told = json.loads((tmp_path / "made" / "replay.json").read_text())
    assert told["metrics"]["loss"] == pytest.approx(losses(run)[step - 1], abs=1e-12)


@LONG
def test_a_network_of_its_own_class_is_exported_as_what_it_computes(whole, tmp_path, capsys):
    run = str(whole("subclassed"))
    assert labkit("export", run, "--output", str(tmp_path / "net.keras")) == 2
    assert "(Block, Net), which a .keras file only names" in capsys.readouterr().err
    for kind in ("saved_model", "tflite", "onnx"):
        output = str(tmp_path / f"net.{kind}")
        assert labkit("export", run, "--format", kind, "--output", output, "--check") == 0


@LONG
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "subclassed"])
def test_an_exported_network_predicts_as_it_did(whole, name, tmp_path, shapes):
    assert labkit("export", str(whole(name)), "--output", str(tmp_path / "net.keras")) == 0
    images, labels = load_split(shapes, "test")
    found = keras.saving.load_model(tmp_path / "net.keras").predict(images, verbose=0).argmax(axis=1)
    test = metrics(whole(name)).split("test")[-1]
    assert (found == labels).mean() == pytest.approx(test["accuracy"], abs=2e-3)


def test_a_run_needs_the_file_no_more(whole, tmp_path, monkeypatch):
    run = RunDirectory(whole("functional"))
    assert (run.code_path / "own_nets.py").read_bytes() == OWN.read_bytes()
    config = json.loads(run.config_path.read_text())
    config["model"]["model"] = "/gone/own_nets.py:functional"
    run.config_path.write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert labkit("evaluate", str(run.path), "--split", "validation") == 0


@LONG
def test_a_built_in_network_and_its_twin_of_plain_keras_give_one_curve(tmp_path):
    fields = {"train_steps": 50, "learning_rate": 0.0002, "learning_rate_schedule": "constant"}
    fields |= {"batch_norm_decay": None, "validate_every_steps": 0, "train_batch_size": 32}
    train(tmp_path / "base", **fields | {"train_steps": 1, "learning_rate": 0.02})
    twin = tmp_path / "twin.keras"  # the same layers, of Keras alone, with the same weights
    assert labkit("export", str(tmp_path / "base"), "--output", str(twin), "--standardized-input") == 0
    train(tmp_path / "built-in", **fields, start_from=tmp_path / "base")
    train(tmp_path / "brought", **fields | {"num_layers": None}, model=twin)
    assert losses(tmp_path / "built-in") == pytest.approx(losses(tmp_path / "brought"), abs=1e-5)
