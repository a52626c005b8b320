"""What can be refused before any work: nothing here imports TensorFlow or writes a file."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from labkit import home
from labkit.config import Config
from labkit.errors import InputError
from labkit.runs import RunDirectory

__all__ = ["Admission", "admit", "check_disk_space", "check_writable", "recorded_config"]

BYTES_PER_METRICS_ROW = 400  # one train row, measured below 300, plus its TensorBoard event
BASE_BYTES = 64 * 2**20  # predictions of the test set (about 30 MB), logs, the rest


@dataclass(frozen=True)
class Admission:
    """Where a run goes and what is there: ``new``, ``resumable`` or ``finished``."""

    run: RunDirectory
    found: str


def admit(config: Config, dataset: str, *, overwrite: bool = False) -> Admission:
    """Decide on the run directory of a configuration.

    Args:
        config: its ``job_dir`` names the directory; None derives a name from the configuration, so the same
            command finds the same run again.
        dataset: the resolved data set's name.
        overwrite: whether a run that is there may be discarded.

    Raises InputError where the directory can't be written, holds something else, or a run with another
    configuration, and where the disk is too full.
    """
    job_dir = config.run.job_dir or str(home.runs_home() / run_name(config, dataset))
    run = RunDirectory(job_dir)
    check_writable(run.path, "--job-dir")
    check_disk_space(run.path, BASE_BYTES + config.run.train_steps * BYTES_PER_METRICS_ROW)
    if not run.exists() and _holds_something_else(run):
        raise InputError(f"--job-dir {run.path} is neither empty nor a run; name another directory")
    if not run.exists() or overwrite:
        return Admission(run, "new")
    recorded = recorded_config(run)
    differences = recorded.differences(config.replace({"dataset": dataset}))
    if differences:
        raise InputError(
            f"--job-dir {run.path} holds a run with another configuration: {'; '.join(differences)}; "
            "name another directory, or discard that run with --overwrite"
        )
    status = run.read_status()
    done = status is not None and status.state == "finished" and status.step >= config.run.train_steps
    return Admission(run, "finished" if done else "resumable")


def recorded_config(run: RunDirectory) -> Config:
    """Return the configuration that a run was started with. Raises InputError where it is damaged."""
    try:
        return Config.from_json(run.read_config())
    except InputError as error:
        reason = str(error)
        if str(run.path) not in reason:
            reason = f"{run.config_path} is damaged: {reason}"
        raise InputError(reason) from None


def _holds_something_else(run: RunDirectory) -> bool:
    """Return whether there is anything that a run killed in its first moments would not have left."""
    ours = {".lock", run.log_path.name, run.events_path.name, run.checkpoints_path.name}
    if not run.path.is_dir():
        return False
    return any(path.name not in ours and not path.name.endswith(".tmp") for path in run.path.iterdir())


def run_name(config: Config, dataset: str) -> str:
    """Return a readable name that is the same for the same configuration."""
    resolved = config.replace({"dataset": dataset})
    return f"{config.model.model}{config.model.num_layers}-{dataset}-{resolved.fingerprint()}"


def check_writable(path: Path, flag: str) -> None:
    """Raise InputError where the directory ``path`` can't be made or written to."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{flag} {path}: {existing} is not a directory; name another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{flag} {path} can't be written: no permission in {existing}; name another place")


def check_disk_space(path: Path, needed: int) -> None:
    """Raise InputError where fewer than ``needed`` bytes are free on the disk of ``path``."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise InputError(
            f"--job-dir {path}: {free / 2**20:.0f} MiB free, the run needs {needed / 2**20:.0f} MiB; "
            "free some space or name a directory on another disk"
        )
