"""A configuration as the arguments of ``labkit train``, for launchers and generated scripts."""

from labkit.config import Config, fields_by_name
from labkit.config.architectures import default_depth
from labkit.config.config import flags_of
from labkit.data.recipe import fits_the_data
from labkit.errors import InputError
from labkit.training.checks import check_together


def train_arguments(config: Config) -> list[str]:
    """Return ``["train", "--dataset", "shapes", …]``, with every field that differs from its default.

    If the command would choose a recipe for the data set, it gets one flag more, which prevents that.

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
