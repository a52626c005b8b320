"""The commands that make a run again and that continue it, from what its directory records."""

import itertools
from contextlib import suppress
from pathlib import Path

from labkit.cluster.flags import train_arguments
from labkit.cluster.hosts import is_host_address
from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.recorded import recorded_config
from labkit.data.of_run import data_dir_of_run
from labkit.distributed.heartbeat import read_heartbeats
from labkit.errors import InputError
from labkit.run_directory import RunDirectory


def making_command(run: RunDirectory) -> list[str]:
    """Return the command that makes a run: as it is recorded, else made from the configuration.

    A recorded command that runs a file or opens ports isn't taken: only the configuration is consented to.

    A run of a notebook or a comparison, and one that was resumed, hasn't recorded such a command.
    Raises InputError if the configuration is needed and damaged.
    """
    recorded = run.read_environment().get("command")
    words = [str(word) for word in recorded] if isinstance(recorded, list) else []
    ours = len(words) > 1 and Path(words[0]).name in ("labkit", "__main__.py") and words[1] == "train"
    ours = ours and not acts(words)
    tasks = tasks_of(run)
    if ours and tasks is None:
        return ["labkit", *words[1:]]
    config = recorded_config(run).replace({"job_dir": str(run.path)})
    # The flags of a task have no meaning without the other tasks, whose commands aren't recorded.
    if config.task_field():
        return ["labkit", *words[1:]]
    return local_cluster_command(run, config, tasks) or [
        "labkit",
        *train_arguments(_with_todays_data(run, config)),
    ]


def acts(words: list[str]) -> bool:
    """Return whether a command has a flag that runs a file or opens ports."""
    flags = {info.flag: info for info in fields_by_name().values() if info.acts}
    for word, next_word in itertools.pairwise([*words, ""]):
        flag, given, value = word.partition("=")
        info = flags.get(flag.replace("_", "-"))
        # A built-in part runs no file.
        if info and not (info.is_code and info.file_of(value if given else next_word) is None):
            return True
    return False


def tasks_of(run: RunDirectory) -> tuple[int, int] | None:
    """Return how many workers and parameter servers trained a run; None for a run of one process."""
    jobs = [name.partition(":")[0] for name in read_heartbeats(run.cluster_path)]
    return (jobs.count("worker"), jobs.count("ps")) if jobs else None


def local_cluster_command(run: RunDirectory, config: Config, tasks: tuple[int, int] | None) -> list[str]:
    """Return what continues the run of a cluster on this machine; empty for a run of one process.

    ``tasks``: those of ``tasks_of``.
    """
    if tasks is None:
        return []
    config = _with_todays_data(run, config)
    hosts = is_host_address(config.distribution.bind)
    if hosts:
        config = config.replace({"bind": fields_by_name()["bind"].default})
    launcher = LocalCluster(*tasks).launcher(*(["--hosts"] if hosts else []))
    return ["labkit", *launcher, *train_arguments(config)]


def _with_todays_data(run: RunDirectory, config: Config) -> Config:
    """Return ``config`` with the folder that holds the run's data today; unchanged if none does."""
    with suppress(InputError):  # the command itself says what is missing
        return config.replace({"data_dir": data_dir_of_run(run, config)[0]})
    return config
