"""What can be refused before any work: nothing here imports TensorFlow or writes a file."""

import ipaddress
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from labkit import home
from labkit.config import Config
from labkit.config.architectures import model_name
from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import evaluations_path

__all__ = [
    "Admission",
    "admit",
    "check_cluster",
    "check_disk_space",
    "check_place",
    "check_writable",
    "discard",
    "recorded_config",
    "run_directory",
]

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
    run = run_directory(config, dataset)
    check_place(config, run)
    if not run.exists():
        return Admission(run, "new")
    recorded = recorded_config(run)
    if overwrite:
        return Admission(run, "new")
    differences = recorded.differences(config.replace({"dataset": dataset}))
    if differences:
        raise InputError(
            f"--job-dir {run.path} holds a run with another configuration: {'; '.join(differences)}; "
            "name another directory, or discard that run with --overwrite"
        )
    status = run.read_status()
    done = status is not None and status.state == "finished" and status.step >= config.run.train_steps
    return Admission(run, "finished" if done else "resumable")


def run_directory(config: Config, dataset: str, cluster: str = "") -> RunDirectory:
    """Return the directory that a configuration names, or the one that its values lead to.

    ``cluster``: words for the end of the name, where a cluster trains the run.
    """
    return RunDirectory(config.run.job_dir or home.runs_home() / run_name(config, dataset, cluster))


def check_place(config: Config, run: RunDirectory) -> None:
    """Raise InputError where ``run`` can't be written, holds something else, or has too little space."""
    check_writable(run.path, "--job-dir")
    check_disk_space(run.path, BASE_BYTES + config.run.train_steps * BYTES_PER_METRICS_ROW)
    if not run.exists() and _holds_something_else(run):
        raise InputError(f"--job-dir {run.path} is neither empty nor a run; name another directory")


def check_cluster(config: Config, task: ClusterTask, overwrite: bool) -> None:
    """Raise InputError where ``config`` can't be trained by the cluster of ``task``."""
    if overwrite:
        raise InputError(
            "--overwrite in a cluster would discard the run again at every restart; remove the directory "
            "first (labkit cluster local does so by itself)"
        )
    host = split_address(task.address)[0]
    if is_loopback(config.distribution.bind) and not is_loopback(host):
        raise InputError(
            f"--bind is {config.distribution.bind}, where nobody from outside reaches this task, "
            f"{task.name} at {task.address}; give --bind {host}, or 0.0.0.0 for every "
            "address (whoever reaches a TensorFlow server can run what they like: see docs/clusters.md)"
        )
    if not task.asynchronous_by_default:
        local = max(1, config.distribution.num_gpus or 1)
        config.check_replicas(task.num_workers * local)
        return
    if (config.distribution.num_gpus or 0) > 1:
        raise InputError(
            f"--num-gpus is {config.distribution.num_gpus}; allowed in asynchronous training: 0 or 1; "
            "start one worker for each GPU"
        )
    unused = {
        "--deterministic": config.run.deterministic,
        "--variable-strategy GPU": config.distribution.variable_strategy == "GPU",
        "--write-graph": config.run.write_graph,
        "--write-images": config.run.write_images,
    }
    for flag, given in unused.items():
        if given:
            raise InputError(
                f"{flag} can't be had in asynchronous training, where workers don't wait for each other and "
                "parameter servers hold the variables; leave it out, or train with --sync"
            )
    if config.optimizer.lookahead_every_steps:
        raise InputError(
            f"--lookahead-every-steps is {config.optimizer.lookahead_every_steps}; allowed in asynchronous "
            "training: 0; leave it out, or train with --sync"
        )
    if config.optimizer.optimizer != "sgd":
        # Muon reads a weight, computes and writes it: what another worker adds in between would be lost.
        raise InputError(
            f"--optimizer is {config.optimizer.optimizer}; allowed in asynchronous training: sgd; "
            "take that one, or train with --sync"
        )
    if config.model.sync_batch_norm:
        raise InputError("--sync-batch-norm needs replicas in step; leave it out, or train with --sync")


def discard(run: RunDirectory) -> None:
    """Remove what a run wrote, and nothing else that lies there.

    The configuration goes last: until then the directory is known as a run.
    """
    for folder in (run.events_path, run.checkpoints_path, run.predictions_path, run.cluster_path):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for path in (
        run.metrics_path,
        evaluations_path(run.metrics_path),
        run.status_path,
        run.environment_path,
        run.log_path,
        run.transfer_path,
        run.config_path,
    ):
        path.unlink(missing_ok=True)
    run.create()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
    ours = {
        ".lock",
        ".launcher",
        "cluster",
        run.log_path.name,
        run.events_path.name,
        run.checkpoints_path.name,
    }
    if not run.path.is_dir():
        return False
    return any(path.name not in ours and not path.name.endswith(".tmp") for path in run.path.iterdir())


def run_name(config: Config, dataset: str, cluster: str = "") -> str:
    """Return a readable name that is the same for the same configuration.

    Several GPUs, or a ``cluster``, make it another name: whoever asks for them wants to see them train, not
    what one process has done already. (A directory that is named goes on with any number of replicas.)
    """
    resolved = config.replace({"dataset": dataset})
    replicas = config.distribution.num_gpus or 1
    suffix = (f"-{replicas}gpus" if replicas > 1 else "") + (f"-{cluster}" if cluster else "")
    return f"{model_name(config.model)}-{dataset}-{resolved.fingerprint()}{suffix}"


def check_writable(path: Path, flag: str) -> None:
    """Raise InputError where the directory ``path`` can't be made or written to."""
    existing = _existing(path, flag)
    if not existing.is_dir():
        raise InputError(f"{flag} {path}: {existing} is not a directory; name another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{flag} {path} can't be written: no permission in {existing}; name another place")


def check_disk_space(path: Path, needed: int) -> None:
    """Raise InputError where fewer than ``needed`` bytes are free on the disk of ``path``."""
    free = shutil.disk_usage(_existing(path, "--job-dir")).free
    if free < needed:
        raise InputError(
            f"--job-dir {path}: {free / 2**20:.0f} MiB free, the run needs {needed / 2**20:.0f} MiB; "
            "free some space or name a directory on another disk"
        )


def _existing(path: Path, flag: str) -> Path:
    """Return ``path`` or the nearest folder above it that exists."""
    try:
        while not path.exists():
            path = path.parent
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise InputError(f"{flag} {str(path)[:200]}: {error.strerror}; name another place") from None
    return path
