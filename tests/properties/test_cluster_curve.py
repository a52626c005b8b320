"""The same curve on one replica, several devices and several processes; what breaks it; resume elsewhere."""

import os
import subprocess

import numpy as np
import pytest

from labkit.config import Config
from labkit.experiments.replicas import Layout, LayoutLosses, compare_replicas
from labkit.run_directory import RunDirectory
from tests.properties.harness import TIME_LIMIT, checkpoint_values, killed_behind, losses, metrics

STEPS, SAVED = 50, 25
ONE, DEVICES, PROCESSES, BOTH = (
    "1 replica",
    "2 logical devices",
    "2 processes",
    "2 processes × 2 logical devices",
)
# A gentle rate: sums in another order round differently, a network in float32 multiplies that at every step,
# and the faster it learns the more (docs/decisions.md has the figures).
VALUES = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 128,
    "learning_rate": 2e-4,
    "learning_rate_schedule": "constant",
    "batch_norm_decay": 0.9,
    "eval_batch_size": 500,
    "checkpoint_every_steps": SAVED,
    "keep_checkpoints": 3,
}

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def comparison(folder) -> LayoutLosses:
    layouts = (ONE, DEVICES, PROCESSES, BOTH)
    return compare_replicas(layouts, steps=STEPS, output=folder, sync_batch_norm=True, **VALUES).synchronized


def run_of(folder, layout):
    names = {ONE: "1-devices", DEVICES: "2-devices", PROCESSES: "2-processes", BOTH: "2-processes-2-devices"}
    return folder / (names[layout] + ("" if layout == ONE else "-synchronized"))


def test_the_losses_are_equal_while_the_network_learns(comparison):
    for layout, apart in comparison.differences.items():
        assert apart.shape == (STEPS,)
        assert apart.max() < 1e-5, layout
    curve = comparison.losses[ONE]
    assert curve[-10:].mean() < curve[:10].mean() - 0.1
    # Equal, and yet not the same computation: else this would compare a training with itself.
    assert comparison.largest > 0


def test_the_layouts_were_what_they_are_called(comparison, folder):
    for layout in comparison.losses:
        environment = RunDirectory(run_of(folder, layout)).read_environment()
        assert environment["replicas"] == Layout.parse(layout).num_replicas


def test_weights_velocities_and_moving_averages_are_close(comparison, folder):
    single = checkpoint_values(run_of(folder, ONE), STEPS)
    for layout in (DEVICES, PROCESSES, BOTH):
        other = checkpoint_values(run_of(folder, layout), STEPS)
        assert other.keys() == single.keys()
        for name, value in single.items():
            # Measured: 0.003. With each replica's own statistics it is 0.1.
            apart = np.linalg.norm(other[name] - value)
            assert apart <= 0.01 * np.linalg.norm(value), f"{layout}: {name}"


@pytest.mark.long
def test_in_float64_nothing_but_rounding_was_apart_at_a_rate_that_learns(tmp_path):
    values = VALUES | {"precision": "float64", "learning_rate": 0.1, "train_batch_size": 64}
    # test_recipes.py and test_brought.py compare two devices in float64.
    found = compare_replicas(
        (ONE, PROCESSES), steps=30, output=tmp_path, sync_batch_norm=True, **values
    ).synchronized
    assert 0 < found.largest < 1e-9
    curve = found.losses[ONE]
    assert curve[-10:].mean() < curve[:10].mean() - 0.05


def test_without_synchronized_statistics_the_curves_part_at_once(comparison, tmp_path):
    alone = compare_replicas(
        (ONE, DEVICES, PROCESSES), steps=5, output=tmp_path, sync_batch_norm=False, **VALUES
    ).own
    # One replica has the statistics of the whole batch either way.
    np.testing.assert_array_equal(alone.losses[ONE], comparison.losses[ONE][:5])
    job_dir = tmp_path / "synchronized"
    config = Config.from_flat({**VALUES, "train_steps": 5, "validate_every_steps": 0, "evaluate_test": False})
    config = config.replace({"num_gpus": 0, "sync_batch_norm": True, "job_dir": str(job_dir)})
    subprocess.run(Layout().command(config), check=True, timeout=TIME_LIMIT)
    np.testing.assert_array_equal(losses(job_dir), alone.losses[ONE])
    assert alone.differences[DEVICES].min() > 1e-4
    assert np.abs(alone.losses[PROCESSES] - alone.losses[DEVICES]).max() < 1e-5
    assert alone.largest > 1e-3


@pytest.mark.parametrize(
    ("begun", "continued"),
    [(PROCESSES, ONE), pytest.param(DEVICES, PROCESSES, marks=pytest.mark.long)],
)
def test_a_run_goes_on_elsewhere_with_one_curve(comparison, folder, begun, continued):
    job_dir = killed_behind(run_of(folder, begun), SAVED, f"{begun} in {continued}")
    layout = Layout.parse(continued)
    values = VALUES | {"train_steps": STEPS, "validate_every_steps": 0, "evaluate_test": False}
    # As the run was begun: a single replica trains on with the flag, too.
    config = layout.config(Config.from_flat(values), job_dir).replace({"sync_batch_norm": True})
    environment = {**os.environ, **layout.variables}
    subprocess.run(layout.command(config), env=environment, check=True, timeout=TIME_LIMIT)
    assert [resume_point.step for resume_point in metrics(job_dir).resume_points] == [SAVED]
    assert RunDirectory(job_dir).read_environment()["replicas"] == layout.num_replicas
    assert np.abs(np.subtract(losses(job_dir), comparison.losses[ONE])).max() < 1e-5
