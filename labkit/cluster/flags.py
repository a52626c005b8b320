"""A configuration as the arguments of ``labkit train``, for launchers and generated scripts; and the commands
that make a run again and that continue it.
"""

import itertools
from contextlib import suppress
from pathlib import Path

from labkit.cluster.hosts import is_host_address
from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.architectures import default_depth
from labkit.config.config import flags_of, recorded_config
from labkit.config.presets import changed_by_merging
from labkit.data.of_run import data_dir_of_run
from labkit.data.recipe import fits_the_data
from labkit.distributed.heartbeat import read_heartbeats
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import read_lineage
from labkit.training.checks import check_together


def train_arguments(config: Config) -> list[str]:
    """Return ``["train", "--dataset", "shapes", …]``, with every field that differs from its default.

    If the command would choose a recipe for the data set, it gets one flag more, which prevents that. So it
    does for a learning rate that is the default, but not that of the optimizer.

    Raises InputError if the configuration names the tasks of a cluster, which is the launcher's job.
    """
    values = config.flat()
    left_out = {"num_layers": default_depth(config.model.model, config.model.block)}
    given = {
        name: values[name]
        for name, info in fields_by_name().items()
        if values[name] != left_out.get(name, info.default)
    }
    if fits_the_data(None, given):  # the recipe needn't be this configuration
        name = "train_steps" if values["epochs"] is None else "batch_norm_decay"
        given[name] = values[name]
    given |= changed_by_merging(given, values)
    if info := config.task_field():
        raise InputError(
            f"{info.flag} is {values[info.name]!r}; the launcher sets it for each task: leave the flag out"
        )
    return ["train", *flags_of(given)]


def check_replicas(config: Config, tasks: int, gpus_per_task: int, ps: int) -> None:
    """Raise InputError if the tasks can't train ``config`` together.

    Args:
        config: of the training.
        tasks: number of processes, parameter servers and chief included.
        gpus_per_task: GPUs of each process.
        ps: number of parameter servers among the tasks.
    """
    if ps and config.distribution.sync:
        raise InputError(f"--ps is {ps} with --sync; allowed: 0, or training without --sync")
    if ps and tasks < ps + 2:
        raise InputError(
            f"--ps is {ps} of {tasks} tasks; a chief and at least one worker are needed as well: "
            f"allowed: at most {max(0, tasks - 2)}, or more tasks"
        )
    devices = config.distribution.num_gpus
    if (devices or 0) > gpus_per_task and not config.distribution.simulate_missing_gpus:
        raise InputError(
            f"--num-gpus is {devices}, but each process gets only {gpus_per_task}; leave it out, or request "
            "more from the launcher (slurm: --gpus-per-task, kubernetes: --gpus)"
        )
    local = max(1, gpus_per_task if devices is None else devices)
    workers = tasks - ps - 1 if ps else tasks
    check_together(config, num_workers=workers, asynchronous=ps > 0, num_local_replicas=local)


def making_command(run: RunDirectory) -> list[str]:
    """Return the command that makes a run: as it is recorded, else made from the configuration.

    A recorded command that runs a file or opens ports isn't taken: only the configuration is consented to.

    A run of a notebook or a comparison, and one that was resumed, hasn't recorded such a command. Of a
    fork it is the one that makes the fork, which ``labkit resume`` then trains.
    Raises InputError if the configuration is needed and damaged.
    """
    past = read_lineage(run)
    changes = [f"{name}={new}" for name, (_, new) in past.changes.items()] if past else []
    if past and not acts([f"--{change}" for change in changes]):
        words = ["labkit", "fork", past.parent, "--at", str(past.step), "--job-dir", str(run.path)]
        return words + ["--set", *changes] * bool(changes)
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
