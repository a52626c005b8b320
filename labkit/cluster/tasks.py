"""Start one task of a cluster, for launchers that don't make TF_CONFIG or don't know labkit's exit codes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from labkit.cluster.exit_status import VARIABLE as ENDING
from labkit.cluster.slurm import listening_address, task_from_slurm
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.tf_config import make_tf_config
from labkit.errors import InputError

__all__ = ["TFJOB_EXIT_RETRY", "become_slurm_task", "run_tfjob_task"]

# TFJob's restart policy ExitCode retries 128 and above; 138, the code of SIGUSR1, is left to the user.
TFJOB_EXIT_RETRY = 138


def become_slurm_task(
    arguments: Sequence[str],
    *,
    ps: int = 0,
    ending: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> NoReturn:
    """Replace this process by ``labkit`` with ``arguments``, as the task that Slurm's variables describe.

    It listens on this node's address towards the other tasks unless ``arguments`` name another (``--bind``).
    Where ``ending`` is given it notes a failure in ``<ending>.failed`` and the step of a stop in
    ``<ending>.step``. Raises InputError outside of a job step.
    """
    environment = os.environ if environment is None else environment
    task = task_from_slurm(environment, ps=ps)
    bind = [] if _names_flag(arguments, "--bind") else ["--bind", listening_address(task)]
    command = _labkit([*arguments, *bind])
    variables = {**environment, "TF_CONFIG": make_tf_config(task)}
    if ending:
        variables[ENDING] = os.path.abspath(ending)
    # Not a child: Slurm signals every process of a step, so what is passed on would arrive twice.
    os.execve(command[0], command, variables)


def run_tfjob_task(arguments: Sequence[str]) -> int:
    """Run ``labkit`` with ``arguments`` and return its exit code in the terms of a TFJob.

    The loss of a peer becomes ``TFJOB_EXIT_RETRY``; death by a signal becomes 128 + its number. SIGTERM,
    SIGINT and SIGHUP are passed on, so that a pod which is deleted saves a checkpoint first.
    """
    command = _labkit(arguments)
    process: subprocess.Popen | None = None
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    process = subprocess.Popen(command)
    for missed in early:
        process.send_signal(missed)
    code = process.wait()
    if code < 0:
        return 128 - code
    return TFJOB_EXIT_RETRY if code == EXIT_LOST_PEER else code


def _labkit(arguments: Sequence[str]) -> list[str]:
    if not arguments:
        raise InputError("no command to start; give one behind --, such as: -- train --sync --dataset shapes")
    return [sys.executable, "-m", "labkit", *arguments]


def _names_flag(arguments: Sequence[str], flag: str) -> bool:
    return any(argument == flag or argument.startswith(flag + "=") for argument in arguments)
