"""Whole trainings by the command itself, and what they came to."""

import itertools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.allocators import environment_with
from benchmarks.common import ROOT
from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader, with_evaluations

__all__ = ["Trained", "evaluate_checkpoints", "train_to_end"]


@dataclass(frozen=True)
class Trained:
    """What a finished run came to.

    ``test``: the row of its last weights, None where it wasn't tested. ``seconds``: of all training steps,
    the first one, which compiles, included; validations aren't. ``curve``: of each step with an evaluation on
    the split that was asked for, the seconds of training before it, and the accuracy.
    """

    test: dict[str, Any] | None
    seconds: float
    curve: list[tuple[float, float]]


def train_to_end(config: Config) -> Trained:
    """Train a run, or go on with it, by `labkit train` in a process of its own; a finished one is read.

    Its output goes to a file beside the run directory. Raises SystemExit where it fails.
    """
    run = _directory(config)
    run.path.parent.mkdir(parents=True, exist_ok=True)
    _labkit(run, *train_arguments(config))
    return read_trained(run)


def evaluate_checkpoints(config: Config, split: str) -> Trained:
    """Evaluate the checkpoints of a finished run that have no figures yet by `labkit evaluate --watch`.

    Raises SystemExit where it fails.
    """
    run = _directory(config)
    _labkit(run, "evaluate", str(run.path), "--watch", "--split", split)
    return read_trained(run, split)


def _directory(config: Config) -> RunDirectory:
    assert config.run.job_dir is not None
    return RunDirectory(config.run.job_dir)


def _labkit(run: RunDirectory, *arguments: str) -> None:
    command = [sys.executable, "-m", "labkit", *arguments]
    log = Path(f"{run.path}.txt")
    with open(log, "a") as output:
        code = subprocess.call(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment_with("keeping")
        )
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-2000:]}")


def read_trained(run: RunDirectory, split: str = "validation") -> Trained:
    """Return what a run has come to so far, and its curve on ``split``."""
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    rows = sorted(reader.split("train"), key=lambda row: row["step"])
    spent = dict(
        zip(
            (row["step"] for row in rows),
            itertools.accumulate(float(row["seconds_per_step"]) for row in rows),
            strict=True,
        )
    )
    evaluated = {row["step"]: row["accuracy"] for row in with_evaluations(reader) if row["split"] == split}
    curve = [(spent[step], accuracy) for step, accuracy in sorted(evaluated.items()) if step in spent]
    tests = reader.split("test")
    return Trained(tests[-1] if tests else None, max(spent.values(), default=0.0), curve)
