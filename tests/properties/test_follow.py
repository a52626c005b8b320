"""Evaluation beside a training, with real processes: each checkpoint once, whatever ends the follower."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.analysis.curves import read_curves
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import evaluations_path
from labkit.run_directory.rows import RowReader
from tests.properties.harness import TIME_LIMIT, labkit, start, train_arguments

STEPS = 80
FIGURES = ("loss", "accuracy", "top5_accuracy", "examples")

pytestmark = pytest.mark.slow


def watch(job_dir: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "labkit", "evaluate", str(job_dir), "--watch"]
    command += ["--num-intra-threads", "0"]  # as in this process, for the same figures
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def evaluator_task(job_dir: Path, **fields: object) -> subprocess.Popen:
    """Start the cluster's evaluator, as the Estimator had it: ``labkit train`` with a task of that type."""
    return subprocess.Popen(
        [sys.executable, "-m", "labkit", *train_arguments(job_dir, **fields)],
        env={**os.environ, "TF_CONFIG": '{"task": {"type": "evaluator", "index": 0}}'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rows_beside(job_dir: Path) -> list[dict]:
    reader = RowReader(evaluations_path(RunDirectory(job_dir).metrics_path))
    rows = reader.poll()
    assert reader.damaged_lines == 0
    return rows


def wait_for_rows(job_dir: Path, count: int, *processes: subprocess.Popen) -> None:
    deadline = time.monotonic() + TIME_LIMIT
    while len(rows_beside(job_dir)) < count:
        assert not any(process.poll() for process in processes), "a process failed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.long
def test_followers_that_are_killed_leave_each_checkpoint_evaluated_once(tmp_path):
    job_dir = tmp_path / "run"
    fields = {
        "train_steps": STEPS,
        "checkpoint_every_steps": 10,
        "keep_checkpoints": STEPS,
        "validate_every_steps": 0,
        "num_intra_threads": 1,
    }
    # Before there is a run; with as many threads as in this process, for the same figures.
    processes = [evaluator_task(job_dir, **{**fields, "num_intra_threads": 0})]
    try:
        processes.append(start(job_dir, **fields))
        training = processes[-1]
        wait_for_rows(job_dir, 1, *processes)
        processes[0].kill()
        processes.append(watch(job_dir))
        wait_for_rows(job_dir, 2, training, processes[-1])
        processes[-1].send_signal(signal.SIGTERM)
        told, _ = processes[-1].communicate(timeout=TIME_LIMIT)
        assert processes[-1].returncode == 128 + signal.SIGTERM, told
        assert "the same command continues" in told
        assert len(rows_beside(job_dir)) < STEPS // 10 - 1, "it was to be stopped in the middle"
        processes.append(watch(job_dir))
        told, _ = processes[-1].communicate(timeout=TIME_LIMIT)
        assert processes[-1].returncode == 0, told
        assert f"the run is finished at step {STEPS} of {STEPS}" in told
        assert training.wait(TIME_LIMIT) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()

    # The training itself validates its last step, and nothing before.
    rows = rows_beside(job_dir)
    assert [row["step"] for row in rows] == list(range(10, STEPS, 10))
    curve = read_curves(RunDirectory(job_dir)).curve("validation", "accuracy")
    assert curve.step.tolist() == list(range(10, STEPS + 1, 10))

    for row in rows:
        options = ["--split", "validation", "--checkpoint", str(row["step"]), "--num-intra-threads", "0"]
        assert labkit("evaluate", str(job_dir), *options) == 0
        found = json.loads((job_dir / "predictions" / "validation.json").read_text())
        assert {name: row[name] for name in FIGURES} == {name: found[name] for name in FIGURES}
    assert len({row["loss"] for row in rows}) == len(rows), "each checkpoint has weights of its own"
    assert rows_beside(job_dir) == rows, "figures that are there are not written again"
