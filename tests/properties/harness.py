"""Real trainings, in this process or in one of their own, for the tests of this folder."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

from labkit.commands import main as cli
from labkit.run_directory.reader import MetricsReader

# Small enough for seconds, with everything in it that resume has to get right: batch normalization,
# momentum, augmentation, a schedule, validation, several epochs' orders.
SMALL = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 16,
    "eval_batch_size": 500,
    "learning_rate": 0.05,
    "learning_rate_schedule": "one_cycle",
    "batch_norm_decay": 0.9,
    "validate_every_steps": 25,
    "log_every_steps": 10,
    "num_gpus": 0,
    "deterministic": True,
}
TIME_LIMIT = 240  # seconds for one process; far above what any needs


def train_arguments(job_dir: Path, **fields: object) -> list[str]:
    """Return the command of a training of ``SMALL`` with other ``fields``; None: not given."""
    arguments = ["train", "--job-dir", str(job_dir)]
    values = {name: value for name, value in (SMALL | fields).items() if value is not None}
    for name, value in values.items():
        arguments += ["--" + name.replace("_", "-"), str(value)]
    return arguments


def labkit(*arguments: str) -> int:
    """Run a command in this process, on one replica; return its exit code."""
    try:
        return cli.main(arguments)
    finally:
        disable_op_determinism()  # else other tests of this process would have to seed every operation


def start(job_dir: Path, **fields: object) -> subprocess.Popen:
    """Start a training, as from a terminal; its output goes beside the run directory."""
    with open(job_dir.with_suffix(".txt"), "a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "labkit", *train_arguments(job_dir, **fields)],
            stdout=output,
            stderr=subprocess.STDOUT,
            # Tests that were started in the background ignore Ctrl-C, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def train(job_dir: Path, **fields: object) -> None:
    """Train to the end. Several replicas get a process of their own: TensorFlow splits the CPU only once."""
    if not fields.get("num_gpus"):
        assert labkit(*train_arguments(job_dir, **fields)) == 0
        return
    process = start(job_dir, **fields)
    try:
        code = process.wait(TIME_LIMIT)
    finally:
        process.kill()
    assert code == 0, job_dir.with_suffix(".txt").read_text()[-3000:]


def killed_behind(run: Path, step: int, name: str = "stopped") -> Path:
    """Copy a run, beside it, as if it had been killed right behind the checkpoint of ``step``."""
    copy = shutil.copytree(run, run.with_name(name))
    for checkpoint in (copy / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    (copy / "status.json").unlink()
    return copy


def assert_same_run(first: Path, second: Path, step: int) -> None:
    """Both have the same losses and, at their last step, the same checkpoint, bit by bit."""
    assert losses(first) == losses(second)
    assert_bit_equal(checkpoint_values(first, step), checkpoint_values(second, step))


def checkpoint_values(job_dir: Path, step: int) -> dict[str, np.ndarray]:
    """Return every array of a checkpoint by its name in the file."""
    reader = tf.train.load_checkpoint(str(job_dir / "checkpoints" / f"step-{step:08d}" / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    return {name: reader.get_tensor(name) for name in names}


def assert_bit_equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Compare two checkpoints bit by bit."""
    assert first.keys() == second.keys()
    assert len(first) > 4
    different = [name for name in first if first[name].tobytes() != second[name].tobytes()]
    assert not different


def metrics(job_dir: Path) -> MetricsReader:
    """Return the run's metrics as a reader sees them."""
    reader = MetricsReader(job_dir / "metrics.jsonl")
    reader.poll()
    return reader


def losses(job_dir: Path) -> list[float]:
    """Return the training loss of each step, in order."""
    return [row["loss"] for row in metrics(job_dir).split("train")]
