"""``labkit cluster``: clusters on this machine and under schedulers."""

import argparse
import dataclasses
import functools
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from labkit.commands.command import Command, CommandGroup
from labkit.config import Config
from labkit.errors import InputError
from labkit.home import LOCAL_PATH, is_local_path

__all__ = ["COMMAND"]


def _add_local(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster local``; behind ``--`` stands the training."""
    for flag, default, help in (
        ("--workers", 2, "processes that train"),
        ("--ps", 0, "parameter servers, with a chief beside them; 0: synchronous training"),
        ("--max-restarts", 3, "starts after the loss of a process"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{help} (default: {default})")


def _local(options: argparse.Namespace, config: Config, overwrite: bool) -> int:
    """Run a training on a cluster of this machine. Returns its exit code. Raises InputError."""
    from labkit.cluster.launch import plan_launch

    say = functools.partial(print, flush=True)
    launch = plan_launch(
        config,
        workers=options.workers,
        ps=options.ps,
        max_restarts=options.max_restarts,
        overwrite=overwrite,
        announce=say,
    )
    return launch.start(output=say)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster slurm``; behind ``--`` stands the training."""
    from labkit.cluster.batch_script import BatchOptions

    add = _adder(parser, BatchOptions)
    add("nodes", "nodes to train on", required=True)
    add("tasks_per_node", "processes on each")
    add("time_limit", "of one start, after which the job requeues itself: minutes, HH:MM:SS or D-HH:MM:SS")
    add("signal_seconds", "how long before the time limit the tasks save and stop")
    add("job_name", "name in the queue")
    add("partition", "where to queue")
    add("account", "who pays")
    add("cpus_per_task", "cores for each process")
    add("gpus_per_task", "GPUs for each process")
    add("memory", "for each node, such as 16G")
    add("ps", "how many of the processes are parameter servers; 0: synchronous training")
    add("max_restarts", "starts after the loss of a process; those at the time limit don't count")
    parser.add_argument("--labkit", metavar="TEXT", help="the command on the nodes (default: this one)")


def _slurm(options: argparse.Namespace, config: Config, overwrite: bool) -> int:
    """Print the batch script of a training. Raises InputError."""
    from labkit.cluster.batch_script import BatchOptions, render_batch_script

    _refuse_overwrite(overwrite)
    values = _values(options, BatchOptions)
    if options.labkit is None:
        values["labkit"] = _this_labkit()
    print(render_batch_script(config, BatchOptions(**values)), end="")
    return 0


def _add_slurm_task(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster slurm-task``; behind ``--`` stands a command of labkit."""
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="parameter servers (default: 0)")
    parser.add_argument(
        "--exit-status",
        metavar="PATH",
        help="record a failure in PATH.failed, the step of a stop in PATH.step",
    )
    _add_command_line(parser)


def _add_command_line(parser: argparse.ArgumentParser) -> None:
    """Declare what stands behind ``--``: a command of labkit."""
    parser.usage = f"{parser.prog} [flags] -- COMMAND [flags]"
    parser.add_argument("command_line", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _slurm_task(options: argparse.Namespace) -> NoReturn:
    """Become the task that Slurm's variables describe. Raises InputError."""
    from labkit.cluster.exit_status import VARIABLE, record_failure
    from labkit.cluster.tasks import become_slurm_task

    command = _behind_dashes(options.command_line)
    if options.exit_status and not is_local_path(options.exit_status):
        raise InputError(f"--exit-status is {options.exit_status!r}; allowed: {LOCAL_PATH}")
    try:
        become_slurm_task(command, ps=options.ps, exit_status=options.exit_status)
    except InputError:
        if options.exit_status:
            record_failure(2, {VARIABLE: options.exit_status})
        raise


def _add_kubernetes_task(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster kubernetes-task``; behind ``--`` stands a command of labkit."""
    parser.add_argument("--name", required=True, metavar="TEXT", help="name of the Job and its Service")
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="pods that train")
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="parameter servers (default: 0)")
    _add_command_line(parser)


def _kubernetes_task(options: argparse.Namespace) -> NoReturn:
    """Become the task of this pod's index. Raises InputError."""
    from labkit.cluster.tasks import become_kubernetes_task

    command = _behind_dashes(options.command_line)
    become_kubernetes_task(command, name=options.name, workers=options.workers, ps=options.ps)


def _add_kubernetes(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster kubernetes``; behind ``--`` stands the training."""
    from labkit.cluster.pods import PodOptions

    add = _adder(parser, PodOptions)
    add("name", "of the job, its Service and its NetworkPolicy", required=True)
    add("image", "container image, see deploy/Containerfile", required=True)
    add("claim", "PersistentVolumeClaim (ReadWriteMany) that holds data/ and runs/", required=True)
    add("workers", "pods that train", required=True)
    add("ps", "pods that are parameter servers, beside a chief; 0: synchronous training")
    add("mount", "where the claim is mounted")
    add("cpus", "for each pod")
    add("memory", "for each pod")
    add("gpus", "for each pod")
    add("max_restarts", "how often a Job is started again after the loss of a pod")
    add("grace_seconds", "for saving a checkpoint before a pod is killed")
    add("deadline_seconds", "longest time of the whole run")


def _kubernetes(options: argparse.Namespace, config: Config, overwrite: bool) -> int:
    """Print the manifests of a training as YAML. Raises InputError."""
    from labkit.cluster.kubernetes import PodOptions, render_indexed_job, to_yaml

    _refuse_overwrite(overwrite)
    print(to_yaml(render_indexed_job(config, PodOptions(**_values(options, PodOptions)))), end="")
    return 0


def _add_tf_config(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``labkit cluster tf-config``."""
    parser.add_argument(
        "--platform",
        choices=("slurm", "kubernetes", "hosts"),
        required=True,
        help="slurm: inside of srun; kubernetes: inside of a pod of an Indexed Job; hosts: by flags",
    )
    parser.add_argument(
        "--ps",
        type=int,
        default=0,
        metavar="N",
        help="slurm, kubernetes: parameter servers (default: 0)",
    )
    parser.add_argument("--name", metavar="TEXT", help="kubernetes: of the Job and its Service")
    parser.add_argument("--workers", type=int, metavar="N", help="kubernetes: pods that train")
    parser.add_argument("--worker-hosts", metavar="TEXT", help="hosts: host:port of each, comma-separated")
    parser.add_argument("--ps-hosts", metavar="TEXT", help="hosts: host:port of each parameter server")
    parser.add_argument("--job-name", metavar="TEXT", help="hosts: worker or ps")
    parser.add_argument("--task-index", type=int, metavar="N", help="hosts: which of them, from 0")
    parser.add_argument("--sync", action="store_true", help="hosts: synchronous training")


def _tf_config(options: argparse.Namespace) -> int:
    """Print TF_CONFIG of one task, for ``TF_CONFIG=$(labkit cluster tf-config …)``. Raises InputError."""
    from labkit.cluster.kubernetes import task_from_kubernetes
    from labkit.cluster.slurm import task_from_slurm
    from labkit.distributed.tf_config import make_tf_config, task_from_hosts

    if options.platform == "slurm":
        task = task_from_slurm(os.environ, ps=options.ps)
    elif options.platform == "kubernetes":
        if options.name is None or options.workers is None:
            raise InputError("--platform is kubernetes; give --name and --workers of the Job with it")
        task = task_from_kubernetes(os.environ, name=options.name, workers=options.workers, ps=options.ps)
    else:
        names = ("worker_hosts", "ps_hosts", "job_name", "task_index", "sync")
        given = Config.from_flat({name: getattr(options, name) for name in names})
        found = task_from_hosts(given.distribution)
        if found is None:
            raise InputError("--platform is hosts; give --worker-hosts, --job-name and --task-index with it")
        task = found
    print(make_tf_config(task))
    return 0


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InputError(
            "--overwrite in a job would discard the run at every restart; leave it out, and remove the run's "
            "directory yourself"
        )


def _adder(parser: argparse.ArgumentParser, owner: type) -> Any:
    """Return a function that declares the flag of one field, with the type and default of the field."""
    fields = {field.name: field for field in dataclasses.fields(owner)}

    def add(name: str, help: str, *, required: bool = False) -> None:
        field = fields[name]
        kind = int if "int" in str(field.type) else str
        default = "" if required else f" (default: {'none' if field.default is None else field.default})"
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            type=kind,
            required=required,
            default=None if required else field.default,
            metavar="N" if kind is int else "TEXT",
            help=help + default,
        )

    return add


def _values(options: argparse.Namespace, owner: type) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(owner)}


def _this_labkit() -> str:
    """Return the path of the command that runs now: on Slurm all nodes usually see it."""
    beside = Path(sys.executable).with_name("labkit")
    return str(beside) if beside.is_file() else shutil.which("labkit") or "labkit"


def _behind_dashes(rest: list[str]) -> list[str]:
    return rest[1:] if rest[:1] == ["--"] else rest


COMMAND = CommandGroup(
    "cluster",
    "Train with several processes, here or under a scheduler.",
    (
        Command("local", "Start, watch and reap a cluster on this machine.", _add_local, _local, True),
        Command("slurm", "Print a batch script for Slurm.", _add_slurm, _slurm, True),
        Command("kubernetes", "Print the manifests of an Indexed Job.", _add_kubernetes, _kubernetes, True),
        Command("tf-config", "Print TF_CONFIG of one task.", _add_tf_config, _tf_config),
        Command("slurm-task", "Inside of srun: run a command as this task.", _add_slurm_task, _slurm_task),
        Command(
            "kubernetes-task",
            "Inside of a pod: run a command as the task of its index.",
            _add_kubernetes_task,
            _kubernetes_task,
        ),
    ),
)
