"""A configuration as the arguments of ``labkit train``, for launchers that write a command down."""

from labkit.config import Config, fields_by_name
from labkit.config.architectures import default_depth
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["CLUSTER_FLAGS", "check_replicas", "train_arguments"]

CLUSTER_FLAGS = ("worker_hosts", "ps_hosts", "job_name", "task_index")


def train_arguments(config: Config) -> list[str]:
    """Return ``["train", "--dataset", "shapes", …]``: every field that isn't what it is when left out.

    Raises InputError where the configuration names a cluster: that is the launcher's to do.
    """
    arguments = ["train"]
    values = config.flat()
    left_out = {"num_layers": default_depth(config.model.model, config.model.block)}
    for name, info in fields_by_name().items():
        value = values[name]
        if value == left_out.get(name, info.default):
            continue
        if name in CLUSTER_FLAGS:
            raise InputError(f"{info.flag} is {value!r}; the launcher names the tasks: leave the flag out")
        if isinstance(value, bool):
            arguments.append(info.flag if value else "--no-" + info.flag.removeprefix("--"))
        else:
            arguments += [info.flag, "none" if value is None else str(value)]
    return arguments


def check_replicas(config: Config, tasks: int, gpus_per_task: int, ps: int) -> None:
    """Raise InputError where the tasks can't train this configuration together.

    Args:
        tasks: processes in all. gpus_per_task: GPUs that each is given. ps: how many are parameter servers.
    """
    if ps and config.distribution.sync:
        raise InputError(f"--ps is {ps} with --sync; allowed: 0, or training without --sync")
    if ps and tasks < ps + 2:
        raise InputError(
            f"--ps is {ps} of {counted(tasks, 'task')}; besides them a chief and at least one worker are "
            f"needed: allowed: at most {max(0, tasks - 2)}, or more tasks"
        )
    devices = config.distribution.num_gpus
    if (devices or 0) > gpus_per_task and not config.distribution.simulate_missing_gpus:
        raise InputError(
            f"--num-gpus is {devices}, but each process is given {counted(gpus_per_task, 'GPU')}; leave it "
            "out, or ask the launcher for them (slurm: --gpus-per-task, kubernetes: --gpus)"
        )
    if not ps:
        config.check_replicas(tasks * max(1, gpus_per_task if devices is None else devices))
