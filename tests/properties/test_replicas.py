"""N replicas are one, with either variable strategy; what N saved, M load."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit.run_directory import RunDirectory
from tests.properties.harness import TIME_LIMIT, checkpoint_values, losses, metrics, train

STEPS, SAVED = 12, 6
FIELDS = {
    "train_steps": STEPS,
    "train_batch_size": 64,
    # A gentle rate: see test_cluster_curve.py.
    "learning_rate": 0.0005,
    "learning_rate_schedule": "constant",
    "weight_decay": 1e-4,
    "sync_batch_norm": True,
    "eval_batch_size": 332,
    "checkpoint_every_steps": SAVED,
    "keep_checkpoints": 5,
    "callbacks": str(Path(__file__).parents[1] / "training" / "recorder.py"),
}
LAYOUTS = [(1, "CPU"), (2, "GPU"), (4, "CPU")]
INSPECTED = 2  # replicas at most: an inspected step is compiled beside the others, for each of them
MIRRORED_ON_GPUS = pytest.param(2, "GPU", marks=pytest.mark.long)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return what gives the run directory by replicas and variable strategy; each trains once."""

    @functools.cache
    def made(replicas: int, variable_strategy: str) -> Path:
        job_dir = tmp_path_factory.mktemp(f"replicas-{replicas}-{variable_strategy}") / "run"
        several = {"simulate_missing_gpus": True, "num_gpus": replicas} if replicas > 1 else {}
        several["inspect_every_steps"] = STEPS if replicas <= INSPECTED else 0
        train(job_dir, **FIELDS | several | {"variable_strategy": variable_strategy})
        return job_dir

    return made


@pytest.mark.parametrize(
    ("replicas", "variable_strategy"),
    [(2, "CPU"), pytest.param(4, "CPU", marks=pytest.mark.long), MIRRORED_ON_GPUS],
)
def test_replicas_give_the_curve_of_one(runs, replicas, variable_strategy):
    one, job_dir = runs(1, "CPU"), runs(replicas, variable_strategy)
    assert np.abs(np.subtract(losses(job_dir), losses(one))).max() < 1e-5
    calls = [json.loads(path.with_name("run.calls.json").read_text()) for path in (one, job_dir)]
    assert [call[:2] for call in calls[0]] == [call[:2] for call in calls[1]], "callbacks see the same"
    single, several = checkpoint_values(one, STEPS), checkpoint_values(job_dir, STEPS)
    assert single.keys() == several.keys()
    for name, value in single.items():
        assert np.linalg.norm(several[name] - value) <= 0.01 * np.linalg.norm(value), name
    # 1,000 and 2,000 examples in batches of 332: the last one is padded, on some replicas with nothing else.
    for split in ("validation", "test"):
        ours, theirs = metrics(job_dir).split(split)[-1], metrics(one).split(split)[-1]
        assert ours["examples"] == theirs["examples"]
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-3)


@pytest.mark.parametrize(("replicas", "variable_strategy"), [(INSPECTED, "CPU"), MIRRORED_ON_GPUS])
def test_inspected_replicas_show_the_layers_of_one(runs, replicas, variable_strategy):
    one, several = (
        json.loads((runs(*layout) / "layers.jsonl").read_text())  # a single line
        for layout in ((1, "CPU"), (replicas, variable_strategy))
    )
    assert several["layers"] == one["layers"]
    for figure, allowed in {
        "activation_mean": 1e-3, "activation_std": 1e-3, "zero_fraction": 1e-3, "gradient_norm": 1e-2,
        "update_ratio": 1e-2,
    }.items():  # fmt: skip
        ours, theirs = (np.array(row[figure], dtype=float) for row in (one, several))  # None becomes NaN
        np.testing.assert_allclose(theirs, ours, rtol=allowed, atol=allowed / 10, err_msg=figure)


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "variable_strategy"), LAYOUTS)
def test_what_any_number_of_replicas_saved_any_other_loads(runs, replicas, variable_strategy):
    saved = [runs(*layout) for layout in LAYOUTS]
    arguments = [str(replicas), variable_strategy, str(SAVED), *map(str, saved)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.properties.restoring", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=TIME_LIMIT,
    )
    results = json.loads(done.stdout.splitlines()[-1])
    for job_dir, result in zip(saved, results, strict=True):
        assert result["arrays"] > 20
        assert result["changed"] == [], "not restored bit by bit"
        assert result["unequal"] == [], "the replicas' copies differ"
        assert result["loss"] == pytest.approx(losses(job_dir)[SAVED], abs=1e-5)


def test_simulated_replicas_are_announced(runs):
    run = RunDirectory(runs(2, "CPU"))
    assert "SIMULATED: 2 GPUs asked for, 0 found" in run.read_environment()["banner"]
    assert "SIMULATED" in run.log_path.read_text()
    assert run.read_environment()["replicas"] == 2
