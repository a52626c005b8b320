"""Runs with everything that TensorBoard reads."""

import time
from pathlib import Path

import pytest

from labkit.config import Config
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.training.telemetry import Pace, Telemetry
from tests.properties.harness import labkit
from tests.tiny import prepare_tiny

STEPS = 6
FLAGS = (
    "--dataset shapes --num-layers 8 --train-batch-size 16 --num-gpus 0 --batch-norm-decay 0.9 "
    f"--train-steps {STEPS} --validate-every-steps 3 --inspect-every-steps 2 --write-graph --write-images"
).split()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Return two runs: ``fast``, a real training, and ``slow, a:1``, of which only metrics were recorded.

    They differ in the learning rate and in ``nesterov``.
    """
    folder = tmp_path_factory.mktemp("tensorboard")
    prepare_tiny(folder / "data")
    fast, slow = (RunDirectory(folder / "runs" / name) for name in ("fast", "slow, a:1"))
    job = ["--data-dir", str(folder / "data"), "--job-dir", str(fast.path)]
    assert labkit("train", *FLAGS, *job, "--nesterov") == 0
    record(slow, learning_rate=0.02)
    return {"fast": fast, "slow, a:1": slow}


def record(run: RunDirectory, **values: object) -> None:
    """Write the metrics of a finished run, as a training does."""
    run.create()
    config = {"dataset": "shapes", "num_layers": 8, "train_batch_size": 16, "train_steps": STEPS, **values}
    write_json_atomic(run.config_path, Config.from_flat(config).to_json())
    telemetry = Telemetry(run, total_steps=STEPS, first_step=0, resumed=False)
    for step in range(1, STEPS + 1):
        row = {"split": "train", "step": step, "loss": 3.0 / step, "wall_time": time.time()}
        telemetry.train_row(row, Pace(16, lambda step: (0.0, 0)))
    for split in ("validation", "test"):
        row = {"split": split, "step": STEPS, "loss": 0.5, "accuracy": 0.8, "wall_time": time.time()}
        telemetry.evaluation_row(row)
    telemetry.state("finished")
    telemetry.close()


def event_file(run: RunDirectory, folder: str = "") -> Path:
    """Return the one event file of a run, or of a folder below its events."""
    [path] = (run.events_path / folder).glob("*.tfevents.*")
    return path
