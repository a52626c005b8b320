"""Steps of several passes equal steps with the whole batch."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from labkit.config import Config
from labkit.errors import InputError
from labkit.experiments.replay.recorded import recorded_step
from labkit.run_directory import RunDirectory
from labkit.run_directory.rows import RowReader
from labkit.training.checks import check_layout
from tests.properties.harness import (
    TIME_LIMIT,
    checkpoint_values,
    killed_behind,
    labkit,
    losses,
    start,
    train,
)

FIELDS = {
    # Without batch normalization, whose statistics are those of a pass; dropout and mixup are the batch's.
    "model": "tutorial_cnn",
    "num_layers": None,
    "batch_norm_decay": None,
    "dropout_rate": 0.3,
    "mixup_alpha": 0.2,
    "train_steps": 2,
    "learning_rate": 0.05,
    "precision": "float64",
    "validate_every_steps": 0,
    "evaluate_test": False,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Steps with the whole batch."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(run, train_batch_size=12, **FIELDS)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "ghosts"), [(0, 1), (0, 2), *(pytest.param(2, n, marks=pytest.mark.long) for n in (1, 2))]
)
def test_passes_equal_the_batch_as_many_times_as_large(whole, tmp_path, replicas, ghosts):
    devices = {"num_gpus": replicas, "simulate_missing_gpus": True, "ghost_batches": ghosts}
    train(tmp_path / "run", train_batch_size=4, accumulate_steps=3, **FIELDS | devices)
    assert np.abs(np.subtract(losses(whole), losses(tmp_path / "run"))).max() < 1e-10
    found, expected = (checkpoint_values(run, 2) for run in (tmp_path / "run", whole))
    assert all(np.allclose(found[key], value, atol=1e-9) for key, value in expected.items())


def layers(run) -> dict[str, Any]:
    """Return the figures of the layers in the first step that was inspected."""
    reader = RowReader(RunDirectory(run).layers_path)
    reader.poll()
    return reader.rows[0]


@pytest.mark.long
def test_ghost_batches_are_the_passes_of_an_accumulation(tmp_path):
    """With normalization, whose statistics are those of a part, and dropout."""
    fields = {"model": "resnet", "num_layers": 8, "dropout_rate": 0.3, "train_steps": 3}
    fields |= {"validate_every_steps": 0, "precision": "float64"}
    train(tmp_path / "passes", train_batch_size=8, accumulate_steps=2, **fields)
    train(tmp_path / "ghosts", train_batch_size=16, ghost_batches=2, **fields)
    train(tmp_path / "whole", train_batch_size=16, **fields)
    passes, ghosts, whole = (losses(tmp_path / name) for name in ("passes", "ghosts", "whole"))
    assert np.abs(np.subtract(passes, ghosts)).max() < 1e-10
    assert np.abs(np.subtract(whole, ghosts)).max() > 1e-4


@pytest.mark.long
def test_an_inspected_step_of_passes_shows_the_whole_batch(tmp_path):
    fields = {**FIELDS, "train_steps": 1, "inspect_every_steps": 1}
    train(tmp_path / "whole", train_batch_size=12, **fields)
    train(tmp_path / "passes", train_batch_size=6, accumulate_steps=2, ghost_batches=2, **fields)
    found, expected = (layers(tmp_path / name) for name in ("passes", "whole"))
    for name in ("activation_mean", "activation_std", "zero_fraction", "gradient_norm", "update_ratio"):
        values, wanted = (np.array(row[name], float) for row in (found, expected))  # NaN where no weights are
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.isfinite(wanted).any()


@pytest.mark.long
def test_batch_normalization_has_the_statistics_of_a_pass_and_verifies(tmp_path):
    fields = {"train_steps": 4, "train_batch_size": 16, "accumulate_steps": 2, "validate_every_steps": 0}
    fields |= {"ghost_batches": 2, "checkpoint_every_steps": 2}
    train(tmp_path / "run", model="resnet", num_layers=8, **fields)
    assert labkit("verify", str(tmp_path / "run")) == 0
    assert labkit("replay", str(tmp_path / "run"), "--step", "3", "--output", str(tmp_path / "made")) == 0


@pytest.mark.long
def test_each_session_of_a_run_is_verified_with_its_own_threads(tmp_path):
    fields = {"train_steps": 8, "validate_every_steps": 0, "checkpoint_every_steps": 4, "keep_checkpoints": 9}
    fields |= {"num_layers": 8, "train_batch_size": 64, "ghost_batches": 2, "evaluate_test": False}
    for threads, name in ((1, "whole"), (2, "stopped")):
        process = start(tmp_path / name, num_intra_threads=threads, **fields)
        assert process.wait(TIME_LIMIT) == 0
        if name == "whole":
            killed_behind(tmp_path / name, 4)
    run = RunDirectory(tmp_path / "stopped")
    assert [recorded_step(run, step).threads for step in (3, 7)] == [1, 2]
    for first in ("0", "4"):
        command = [sys.executable, "-m", "labkit", "verify", run.path, "--from", first, "--steps", "4"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
        assert (said.returncode, "bit-equal" in said.stdout) == (0, True), said.stdout + said.stderr


def test_an_embedding_has_its_gradient_in_parts(tmp_path):
    (tmp_path / "placed.py").write_text(EMBEDDING)
    fields = {"model": f"{tmp_path / 'placed.py'}:build", "num_layers": None, "train_steps": 2}
    fields |= {"train_batch_size": 16, "validate_every_steps": 0, "evaluate_test": False}
    for parts in (1, 2):
        train(tmp_path / str(parts), ghost_batches=parts, **fields)
    one, two = (losses(tmp_path / str(parts)) for parts in (1, 2))
    np.testing.assert_allclose(two, one, rtol=1e-5)


EMBEDDING = """
import keras


class Placed(keras.layers.Layer):
    def build(self, shape):
        self.places = keras.layers.Embedding(shape[1], shape[2])
        self.places.build(None)

    def call(self, x):
        return x + self.places(keras.ops.arange(x.shape[1]))


def build(input_shape, num_classes):
    images = keras.Input(input_shape)
    x = keras.layers.Reshape((-1, 8))(keras.layers.Conv2D(8, 8, 8)(images))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.ReLU()(Placed()(x)))
    return keras.Model(images, keras.layers.Dense(num_classes)(x))
"""


def test_what_needs_the_whole_batch_at_once_is_refused():
    config = Config.from_flat({"accumulate_steps": 2, "sync_batch_norm": True})
    with pytest.raises(InputError, match="--accumulate-steps is 2 with --sync.*give --accumulate-steps 1"):
        check_layout(config, num_local_replicas=2)
    with pytest.raises(InputError, match="--ghost-batches is 2 with --sync.*give --ghost-batches 1"):
        check_layout(config.replace({"accumulate_steps": 1, "ghost_batches": 2}), num_local_replicas=2)
