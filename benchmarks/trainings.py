"""Full trainings with `labkit train`, and their results."""

import datetime
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
from labkit.run_directory.reader import read_metrics, with_evaluations

__all__ = ["Trained", "evaluate_checkpoints", "train_to_end"]


@dataclass(frozen=True)
class Trained:
    """The result of a finished run.

    ``test``: the row of the test with its last weights; None without a test. ``seconds``: of all training
    steps, including compilation but not validation or what is done between steps. ``curve``: seconds of
    training and accuracy for each step that was evaluated on the requested split. ``date``: of the last step.
    ``form``: how a peer computed.
    """

    test: dict[str, Any] | None
    seconds: float
    curve: list[tuple[float, float]]
    date: datetime.date
    form: str | None = None


def train_to_end(config: Config) -> Trained:
    """Train or resume a run with `labkit train`; a finished run is only read.

    The output goes to a file beside the run directory. Raises SystemExit if the training fails.
    """
    run = _directory(config)
    run.path.parent.mkdir(parents=True, exist_ok=True)
    _labkit(run, *train_arguments(config))
    return read_trained(run)


def evaluate_checkpoints(config: Config, split: str) -> Trained:
    """Evaluate those checkpoints of a finished run that have no metrics yet with `labkit evaluate --watch`.

    Each image is seen once, also where the run's own evaluations see several views.

    Raises SystemExit if that fails.
    """
    run = _directory(config)
    _labkit(run, "evaluate", str(run.path), "--watch", "--split", split, "--test-time-augmentation", "none")
    return read_trained(run, split)


def _directory(config: Config) -> RunDirectory:
    assert config.run.job_dir is not None
    return RunDirectory(config.run.job_dir)


def _labkit(run: RunDirectory, *arguments: str) -> None:
    command = [sys.executable, "-m", "labkit", *arguments]
    log = Path(f"{run.path}.txt")
    with open(log, "a") as output:
        code = subprocess.call(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment_with("default")
        )
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-2000:]}")


def read_trained(run: RunDirectory, split: str = "validation") -> Trained:
    """Return the result of a run so far, with its curve on ``split``."""
    reader = read_metrics(run)
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
    date = datetime.datetime.fromtimestamp(rows[-1]["wall_time"], datetime.UTC).date()
    return Trained(tests[-1] if tests else None, max(spent.values(), default=0.0), curve, date)
