"""Start one task of a cluster under a scheduler that does not set TF_CONFIG."""

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from labkit.cluster.kubernetes import task_from_kubernetes
from labkit.cluster.slurm import listening_address, task_from_slurm
from labkit.distributed.task import ClusterTask, make_tf_config
from labkit.errors import InputError
from labkit.startup.child import EXIT_STATUS, python_command


def become_slurm_task(
    arguments: Sequence[str],
    *,
    ps: int = 0,
    exit_status: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> NoReturn:
    """Replace this process by ``labkit`` with ``arguments``, as the task that Slurm's variables describe.

    It listens on this node's address towards the other tasks unless ``arguments`` contain ``--bind``. If
    ``exit_status`` is given, a failure is recorded in ``<exit_status>.failed`` and the step of a stop in
    ``<exit_status>.step``. Raises InputError outside of a job step.
    """
    task = task_from_slurm(environment, ps=ps)
    bind = [] if _names_flag(arguments, "--bind") else ["--bind", listening_address(task)]
    status = {EXIT_STATUS: os.path.abspath(exit_status)} if exit_status else {}
    _become(task, [*arguments, *bind], {**environment, **status})


def become_kubernetes_task(
    arguments: Sequence[str],
    *,
    name: str,
    workers: int,
    ps: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> NoReturn:
    """Replace this process by ``labkit`` with ``arguments``, as the task of this pod's index.

    ``name``, ``workers`` and ``ps`` are those of the Job. Raises InputError outside of an Indexed Job.
    """
    task = task_from_kubernetes(environment, name=name, workers=workers, ps=ps)
    _become(task, arguments, environment)


def _become(task: ClusterTask, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    command = _labkit(arguments)
    # exec, because a child would get every signal of Slurm twice: from Slurm and from its parent.
    os.execve(command[0], command, {**environment, "TF_CONFIG": make_tf_config(task)})


def _labkit(arguments: Sequence[str]) -> list[str]:
    if not arguments:
        raise InputError("no command to start; give one after --, such as: -- train --sync --dataset shapes")
    return python_command("-m", "labkit", *arguments)


def _names_flag(arguments: Sequence[str], flag: str) -> bool:
    return any(argument == flag or argument.startswith(flag + "=") for argument in arguments)
