"""A run that was stopped is the run that was never stopped."""

import functools
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.run_directory import RunDirectory
from tests.properties.harness import (
    TIME_LIMIT,
    assert_same_run,
    checkpoint_values,
    labkit,
    metrics,
    start,
    train,
    train_arguments,
)

STEPS = 40
OWN = Path(__file__).parents[1] / "own_nets.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Callable[..., Path]:
    """Return what gives the run of so many steps that nothing interrupted; each trains once."""

    @functools.cache
    def made(steps: int, network: str = "") -> Path:
        job_dir = tmp_path_factory.mktemp("uninterrupted") / "run"
        train(job_dir, train_steps=steps, **network_of(network))
        return job_dir

    return made


def network_of(name: str) -> dict[str, object]:
    """Return the fields of a network in ``own_nets.py``; "": the built-in one."""
    return {"model": f"{OWN}:{name}", "num_layers": None, "batch_norm_decay": None} if name else {}


def kill_when(process, condition) -> bool:
    """SIGKILL ``process`` as soon as ``condition`` holds; False where it ended before."""
    deadline = time.monotonic() + TIME_LIMIT
    while process.poll() is None:
        if condition():
            process.kill()
            process.wait(TIME_LIMIT)
            return True
        assert time.monotonic() < deadline, "the condition never came"
        time.sleep(0.0005)
    return False


def moment(kind: str, job_dir: Path, chance: random.Random):
    """Return a condition for the moment of a kill, drawn anew for each."""
    metrics_path, checkpoints = job_dir / "metrics.jsonl", job_dir / "checkpoints"
    if kind == "anywhere":
        # Within the start, which is longer than this wherever TensorFlow is imported, or in the first steps.
        at = time.monotonic() + chance.uniform(0, 4)
        return lambda: time.monotonic() >= at
    if kind == "saving":
        return lambda: any(checkpoints.glob(".step-*.tmp"))
    size = metrics_path.stat().st_size if metrics_path.exists() else 0
    more = chance.randrange(1, 1500)  # bytes: up to some five rows, and inside of one as well
    return lambda: metrics_path.exists() and metrics_path.stat().st_size >= size + more


@pytest.mark.long
@pytest.mark.parametrize(
    # test_brought.py goes on with a network written in each other way.
    ("network", "kills", "steps"),
    [("", 20, 120), ("subclassed", 4, 40)],
)
def test_kills_leave_the_same_weights_and_each_step_once(
    uninterrupted, tmp_path, capsys, network, kills, steps
):
    chance = random.Random(20)
    whole, job_dir = uninterrupted(steps, network), tmp_path / "run"
    fields = {"train_steps": steps, "checkpoint_every_steps": 1, **network_of(network)}
    kinds = ["saving", "stepping", "anywhere", "stepping"] * (kills // 4)
    killed = {"saving": 0, "stepping": 0, "anywhere": 0}
    for kind in kinds:
        process = start(job_dir, **fields)
        try:
            killed[kind] += kill_when(process, moment(kind, job_dir, chance))
        finally:
            process.kill()
            process.wait(TIME_LIMIT)
    train(job_dir, **fields)

    assert sum(killed.values()) == kills, f"the run ended before the last kill: {killed}"
    assert_same_run(whole, job_dir, steps)
    rows = metrics(job_dir)
    assert [row["step"] for row in rows.split("train")] == list(range(1, steps + 1))
    assert [row["step"] for row in rows.split("validation")] == [*range(25, steps, 25), steps]
    assert len(rows.split("test")) == 1
    assert rows.resume_points
    assert not list((job_dir / "checkpoints").glob(".*"))
    assert labkit("verify", str(job_dir), "--from", "0", "--steps", str(steps)) == 0
    assert f"bit-equal: steps 1 to {steps} of the run" in capsys.readouterr().out


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(uninterrupted, tmp_path, number):
    job_dir = tmp_path / "run"
    # No checkpoint is due before the end: what is restored is what the signal made it save.
    fields = {"train_steps": STEPS, "checkpoint_every_seconds": None, "validate_every_steps": 25}
    process = start(job_dir, **fields)
    deadline = time.monotonic() + TIME_LIMIT
    try:
        while process.poll() is None and not (
            (job_dir / "metrics.jsonl").exists() and len(metrics(job_dir).rows) >= 5
        ):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(number)
        code = process.wait(TIME_LIMIT)
    finally:
        process.kill()
    assert code == 128 + number
    status = RunDirectory(job_dir).read_status()
    assert status.state == "interrupted"
    assert signal.Signals(number).name in status.message
    assert 5 <= status.step < STEPS
    assert (job_dir / "checkpoints" / f"step-{status.step:08d}").is_dir()

    train(job_dir, **fields)
    assert metrics(job_dir).resume_points[-1].step == status.step
    assert_same_run(uninterrupted(STEPS), job_dir, STEPS)


@pytest.mark.long
def test_a_reader_of_the_output_that_goes_away_does_not_end_the_run(tmp_path):
    job_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", *train_arguments(job_dir, train_steps=12, log_every_steps=1)],
        stdout=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIME_LIMIT) == 0
    finally:
        process.kill()
    run = RunDirectory(job_dir)
    assert run.read_status().state == "finished"
    assert "finished: 12 steps" in run.log_path.read_text()


def test_a_loss_that_is_not_finite_fails_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    job_dir = tmp_path / "run"
    rising = {"learning_rate": 1e18, "learning_rate_schedule": "constant", "warmup_steps": STEPS}
    assert labkit(*train_arguments(job_dir, train_steps=STEPS, checkpoint_every_steps=1, **rising)) == 1
    status = RunDirectory(job_dir).read_status()
    assert status.state == "failed"
    assert f"step {status.step}" in status.message
    rows = metrics(job_dir).split("train")
    assert rows[-1]["step"] == status.step
    kept = sorted((job_dir / "checkpoints").iterdir())
    assert kept, "no checkpoint was kept"
    for path in kept:
        step = json.loads((path / "state.json").read_text())["step"]
        for value in checkpoint_values(job_dir, step).values():
            assert value.dtype.kind != "f" or all(math.isfinite(x) for x in value.ravel())


@pytest.mark.long  # that the batches go on is held by tests/data/test_pipeline.py
def test_streaming_input_resumes_too(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, train_steps=12, input_path="streaming")
    process = start(parts, train_steps=12, input_path="streaming", checkpoint_every_steps=1)
    try:
        kill_when(process, moment("stepping", parts, random.Random(1)))
    finally:
        process.kill()
        process.wait(TIME_LIMIT)
    train(parts, train_steps=12, input_path="streaming", checkpoint_every_steps=1)
    assert_same_run(whole, parts, 12)
