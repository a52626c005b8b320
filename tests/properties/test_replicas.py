"""N replicas are one."""

import time

import numpy as np
import pytest

from labkit.runs import RunDirectory
from tests.properties.harness import SMALL, TIME_LIMIT, checkpoint_values, losses, metrics, start, train

STEPS = 12
# A gentle rate: the runs differ by the rounding of sums in another order (below 1e-6 at first), which
# an untrained network doubles within a step or two at a rough one.
FIELDS = {
    "train_steps": STEPS,
    "train_batch_size": 64,
    "learning_rate": 0.0005,
    "learning_rate_schedule": "constant",
    "weight_decay": 1e-4,
    "sync_batch_norm": True,
    "batch_norm_epsilon": 1e-7,
    "eval_batch_size": 332,
    "checkpoint_every_steps": 6,
    "keep_checkpoints": 5,
}
SIMULATED = {"simulate_missing_gpus": True}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def one_replica(tmp_path_factory):
    job_dir = tmp_path_factory.mktemp("one") / "run"
    train(job_dir, **FIELDS)
    return job_dir


@pytest.mark.parametrize(("replicas", "variable_strategy"), [(2, "CPU"), (2, "GPU"), (4, "CPU")])
def test_replicas_give_the_curve_of_one(one_replica, tmp_path, replicas, variable_strategy):
    job_dir = tmp_path / "run"
    train(job_dir, **FIELDS | SIMULATED | {"num_gpus": replicas, "variable_strategy": variable_strategy})
    assert np.abs(np.subtract(losses(job_dir), losses(one_replica))).max() < 1e-5
    single, several = checkpoint_values(one_replica, STEPS), checkpoint_values(job_dir, STEPS)
    assert single.keys() == several.keys()
    for name, value in single.items():
        if name.startswith("model/"):
            np.testing.assert_allclose(several[name], value, atol=1e-4, err_msg=name)
    # 1,000 and 2,000 examples in batches of 332: the last one is padded, on some replicas with nothing else.
    for split in ("validation", "test"):
        ours, theirs = metrics(job_dir).split(split)[-1], metrics(one_replica).split(split)[-1]
        assert ours["examples"] == theirs["examples"]
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-3)


def test_without_synchronized_statistics_the_curves_part(one_replica, tmp_path):
    job_dir = tmp_path / "run"
    train(job_dir, **FIELDS | SIMULATED | {"num_gpus": 2, "sync_batch_norm": False})
    assert np.abs(np.subtract(losses(job_dir), losses(one_replica))).max() > 1e-3


def test_a_run_goes_on_with_another_number_of_replicas(one_replica, tmp_path):
    job_dir = tmp_path / "run"
    process = start(job_dir, **FIELDS | SIMULATED | {"num_gpus": 2})
    try:
        deadline = time.monotonic() + TIME_LIMIT
        while process.poll() is None and not (job_dir / "checkpoints" / "step-00000006").is_dir():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.kill()
        process.wait(TIME_LIMIT)
    train(job_dir, **FIELDS)
    assert metrics(job_dir).seams[0].step >= 6
    assert np.abs(np.subtract(losses(job_dir), losses(one_replica))).max() < 1e-5


def test_simulated_replicas_are_announced(tmp_path):
    job_dir = tmp_path / "run"
    train(job_dir, **SMALL | SIMULATED | {"train_steps": 2, "num_gpus": 2})
    run = RunDirectory(job_dir)
    assert "SIMULATED: 2 GPUs asked for, 0 found" in run.read_environment()["banner"]
    assert "SIMULATED" in run.log_path.read_text()
    assert run.read_environment()["replicas"] == 2
