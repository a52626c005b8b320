"""``labkit cluster``: clusters on this machine and under schedulers."""

import argparse
import dataclasses
import functools
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, training_of
from labkit.config import Config
from labkit.errors import InputError
from labkit.home import LOCAL_PATH, is_local_path

__all__ = [
    "declare_kubernetes",
    "declare_kubernetes_task",
    "declare_local",
    "declare_slurm",
    "declare_slurm_task",
    "declare_tf_config",
]


def declare_local(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster local``; behind ``--`` stands the training."""
    for flag, default, help in (
        ("--workers", 2, "Processes that train."),
        ("--ps", 0, "Parameter servers, started with a chief. 0 trains synchronously."),
        ("--max-restarts", 3, "Restarts after the loss of a process."),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{help} Default: {default}.")
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="Give each process a host of its own: a network namespace with an address on a bridge. Needs "
        "Linux, and root or user namespaces.",
    )
    parser.add_argument(
        "--link",
        metavar="RATE",
        help="With --hosts: the rate of each host's link, such as 100mbit. Default: no limit.",
    )
    _take_training(parser)
    return _local


def _local(options: argparse.Namespace) -> int:
    """Run a training on a cluster of this machine. Returns its exit code. Raises InputError."""
    from labkit.cluster.launch import plan_launch

    config, overwrite = training_of(options, "labkit cluster local")
    say = functools.partial(print, flush=True)
    launch = plan_launch(
        config,
        workers=options.workers,
        ps=options.ps,
        max_restarts=options.max_restarts,
        hosts=options.hosts,
        link=options.link,
        overwrite=overwrite,
        announce=say,
    )
    return launch.start(output=say)


def declare_slurm(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster slurm``; behind ``--`` stands the training."""
    from labkit.cluster.batch_script import BatchOptions

    add = _adder(parser, BatchOptions)
    add("nodes", "Nodes to train on.", required=True)
    add("tasks_per_node", "Processes on each node.")
    add("time_limit", "Time after which the job saves and requeues itself: minutes, HH:MM:SS or D-HH:MM:SS.")
    add("signal_seconds", "Seconds before the time limit at which the tasks save and stop.")
    add("job_name", "Name in the queue.")
    add("partition", "Partition to queue in.")
    add("account", "Account to charge.")
    add("cpus_per_task", "Cores for each process.")
    add("gpus_per_task", "GPUs for each process.")
    add("memory", "Memory for each node, such as 16G.")
    add("ps", "How many of the processes are parameter servers. 0 trains synchronously.")
    add("max_restarts", "Restarts after the loss of a process. Requeues at the time limit don't count.")
    parser.add_argument(
        "--labkit", metavar="TEXT", help="Path of labkit on the nodes. Default: the one that runs now."
    )
    _take_training(parser)
    return _slurm


def _slurm(options: argparse.Namespace) -> int:
    """Print the batch script of a training. Raises InputError."""
    from labkit.cluster.batch_script import BatchOptions, render_batch_script

    config, overwrite = training_of(options, "labkit cluster slurm")
    _refuse_overwrite(overwrite)
    values = _values(options, BatchOptions)
    if options.labkit is None:
        values["labkit"] = _this_labkit()
    print(render_batch_script(config, BatchOptions(**values)), end="")
    return 0


def declare_slurm_task(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster slurm-task``; behind ``--`` stands a command of labkit."""
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="Parameter servers. Default: 0.")
    parser.add_argument(
        "--exit-status",
        metavar="PATH",
        help="Writes a failure to PATH.failed and the step of a stop to PATH.step.",
    )
    _take_command(parser)
    return _slurm_task


def declare_kubernetes_task(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster kubernetes-task``; behind ``--`` stands a command of labkit."""
    parser.add_argument("--name", required=True, metavar="TEXT", help="Name of the Job and its Service.")
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="Pods that train.")
    parser.add_argument("--ps", type=int, default=0, metavar="N", help="Parameter servers. Default: 0.")
    _take_command(parser)
    return _kubernetes_task


def _take_command(parser: Parser) -> None:
    """Let a command of labkit stand behind ``--``."""
    parser.usage = f"{parser.prog} [flags] -- COMMAND [flags]"
    parser.takes_rest = True


def _take_training(parser: Parser) -> None:
    """Let a training stand behind ``--``."""
    parser.usage = f"{parser.prog} [flags] -- train [flags of labkit train]"
    parser.takes_rest = True


def _slurm_task(options: argparse.Namespace) -> NoReturn:
    """Become the task that Slurm's variables describe. Raises InputError."""
    from labkit.cluster.exit_status import VARIABLE, record_failure
    from labkit.cluster.tasks import become_slurm_task

    if options.exit_status and not is_local_path(options.exit_status):
        raise InputError(f"--exit-status is {options.exit_status!r}; allowed: {LOCAL_PATH}")
    try:
        become_slurm_task(options.rest, ps=options.ps, exit_status=options.exit_status)
    except InputError:
        if options.exit_status:
            record_failure(2, {VARIABLE: options.exit_status})
        raise


def _kubernetes_task(options: argparse.Namespace) -> NoReturn:
    """Become the task of this pod's index. Raises InputError."""
    from labkit.cluster.tasks import become_kubernetes_task

    become_kubernetes_task(options.rest, name=options.name, workers=options.workers, ps=options.ps)


def declare_kubernetes(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster kubernetes``; behind ``--`` stands the training."""
    from labkit.cluster.pods import PodOptions

    add = _adder(parser, PodOptions)
    add("name", "Name of the job, its Service and its NetworkPolicy.", required=True)
    add("image", "Container image; see deploy/Containerfile.", required=True)
    add("claim", "PersistentVolumeClaim (ReadWriteMany) that holds data/ and runs/.", required=True)
    add("workers", "Pods that train.", required=True)
    add("ps", "Pods that are parameter servers, started with a chief. 0 trains synchronously.")
    add("mount", "Where the claim is mounted.")
    add("cpus", "CPUs for each pod.")
    add("memory", "Memory for each pod.")
    add("gpus", "GPUs for each pod.")
    add("max_restarts", "Restarts of the Job after the loss of a pod.")
    add("grace_seconds", "Seconds for saving a checkpoint before a pod is killed.")
    add("deadline_seconds", "Longest time of the whole run, in seconds.")
    _take_training(parser)
    return _kubernetes


def _kubernetes(options: argparse.Namespace) -> int:
    """Print the manifests of a training as YAML. Raises InputError."""
    from labkit.cluster.kubernetes import PodOptions, render_indexed_job, to_yaml

    config, overwrite = training_of(options, "labkit cluster kubernetes")
    _refuse_overwrite(overwrite)
    print(to_yaml(render_indexed_job(config, PodOptions(**_values(options, PodOptions)))), end="")
    return 0


def declare_tf_config(parser: Parser) -> Run:
    """Declare the flags of ``labkit cluster tf-config``."""
    parser.add_argument(
        "--platform",
        choices=("slurm", "kubernetes", "hosts"),
        required=True,
        help="Where the task is described: slurm within srun, kubernetes within a pod, hosts by flags.",
    )
    parser.add_argument(
        "--ps", type=int, default=0, metavar="N", help="slurm, kubernetes: parameter servers. Default: 0."
    )
    parser.add_argument("--name", metavar="TEXT", help="kubernetes: name of the Job and its Service.")
    parser.add_argument("--workers", type=int, metavar="N", help="kubernetes: pods that train.")
    parser.add_argument(
        "--worker-hosts", metavar="TEXT", help="hosts: host:port of each worker, separated by commas."
    )
    parser.add_argument(
        "--ps-hosts", metavar="TEXT", help="hosts: host:port of each parameter server, separated by commas."
    )
    parser.add_argument("--job-name", metavar="TEXT", help="hosts: worker or ps.")
    parser.add_argument("--task-index", type=int, metavar="N", help="hosts: number of the task, from 0.")
    parser.add_argument("--sync", action="store_true", help="hosts: synchronous training.")
    return _tf_config


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
        default = "" if required else f" Default: {'none' if field.default is None else field.default}."
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
