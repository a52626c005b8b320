"""The Slurm batch script of a run: it trains, saves before the time limit, and requeues itself."""

import re
import shlex
from dataclasses import dataclass

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.config import Config
from labkit.errors import InputError

__all__ = ["BatchOptions", "render_batch_script"]

# Slurm looks at time limits now and then and may send the signal this much earlier (man sbatch, --signal).
SIGNAL_EARLY_SECONDS = 60


@dataclass(frozen=True)
class BatchOptions:
    """What to ask Slurm for. Names as the flags of sbatch; None leaves the choice to Slurm.

    ``time_limit`` in one of Slurm's forms (minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS);
    ``signal_seconds`` before it the tasks are asked to save and stop. ``ps``: how many of the tasks are
    parameter servers (0: synchronous training). ``max_restarts``: starts after the loss of a task, or
    after a stop without a new step; those at the time limit don't count. ``labkit``: the command, as all
    nodes find it.

    Raises InputError, on construction, for values that Slurm would refuse or misread.
    """

    nodes: int
    tasks_per_node: int = 1
    time_limit: str = "04:00:00"
    signal_seconds: int = 120
    job_name: str = "labkit"
    partition: str | None = None
    account: str | None = None
    cpus_per_task: int | None = None
    gpus_per_task: int = 0
    memory: str | None = None
    ps: int = 0
    max_restarts: int = 3
    labkit: str = "labkit"

    def __post_init__(self) -> None:
        lowest = {"nodes": 1, "tasks_per_node": 1, "signal_seconds": 1, "cpus_per_task": 1}
        for name in (*lowest, "gpus_per_task", "ps", "max_restarts"):
            value, minimum = getattr(self, name), lowest.get(name, 0)
            if value is not None and not minimum <= value <= 65535:
                raise InputError(f"--{name.replace('_', '-')} is {value}; allowed: {minimum} to 65535")
        for name in ("job_name", "partition", "account", "memory"):
            value, flag = getattr(self, name), "--" + name.replace("_", "-")
            if value is not None and not re.fullmatch(r"[\w.,+@:-]+", value):
                raise InputError(f"{flag} is {value!r}; allowed: letters, digits and .,+@:_-")
        if not re.fullmatch(r"[\w./+@ -]+", self.labkit):
            raise InputError(f"--labkit is {self.labkit!r}; allowed: the command's path on the nodes")
        shortest = self.signal_seconds + SIGNAL_EARLY_SECONDS
        if _seconds(self.time_limit) <= shortest:
            raise InputError(
                f"--time-limit is {self.time_limit} with --signal-seconds {self.signal_seconds}; "
                f"allowed: more than {shortest} seconds, since Slurm may signal a minute early"
            )

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node


def _seconds(text: str) -> int:
    """Return the seconds of one of Slurm's time limits."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        forms = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS"
        raise InputError(f"--time-limit is {text!r}; allowed: {forms}")
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


SCRIPT = """\
#!/bin/bash
# Made by `labkit cluster slurm`. Submit it from a folder that every node sees: sbatch FILE
{directives}
# The signal goes to the tasks, not to this script: they save a checkpoint and end with 143.
#SBATCH --signal=TERM@{signal_seconds}

notes=labkit-$SLURM_JOB_ID
ending=$notes.${{SLURM_RESTART_COUNT:-0}}
echo "labkit: job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"

# In blocks: TF_CONFIG is made from the ranks. A task that dies doesn't end the others: they notice, say
# whom they lost, and end with 75.
srun --distribution=block --kill-on-bad-exit=0{srun} \\
    {command}
code=$?

# srun ends with the highest code of all tasks. Where one failed (1, 2) the others lost it (75), so a task
# that fails also writes its code down, and one that stops its step.
if [[ -s $ending.failed ]]; then code=$(<"$ending.failed"); fi
step=0 reached=0
if [[ -s $ending.step ]]; then step=$(<"$ending.step"); fi
if [[ -s $notes.step ]]; then reached=$(<"$notes.step"); fi
rm -f "$ending.failed" "$ending.step"

case $code in
0) rm -f "$notes.losses" "$notes.step" ;;
1 | 2 | 126 | 127 | 130) echo "labkit: ended with $code; starting again would not help" ;;
*)
    if ((code == 143 && step > reached)); then
        echo "$step" >"$notes.step"
        echo "labkit: stopped with a checkpoint; back into the queue"
        scontrol requeue "$SLURM_JOB_ID"
        exit $code
    fi
    why="lost a task (exit code $code)"
    if ((code == 143)); then why="stopped without a new step"; fi
    echo "$code" >>"$notes.losses"
    if (($(wc -l <"$notes.losses") > {max_restarts})); then
        echo "labkit: $why more than {max_restarts} times; giving up"
    else
        echo "labkit: $why; back into the queue"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit $code
"""


def render_batch_script(config: Config, options: BatchOptions) -> str:
    """Return a script for ``sbatch`` that trains ``config`` and requeues itself until the run is finished.

    Before the time limit the tasks save and stop; when a task was lost they stop; either way the same job
    goes back into the queue and goes on from the last checkpoint. A failed training or a wrong command, of
    any task, ends the job. Raises InputError where the tasks can't train this configuration together.
    """
    check_replicas(config, options.tasks, options.gpus_per_task, options.ps)
    wanted = {
        "job-name": options.job_name,
        "partition": options.partition,
        "account": options.account,
        "nodes": options.nodes,
        "ntasks-per-node": options.tasks_per_node,
        "cpus-per-task": options.cpus_per_task,
        "gpus-per-task": options.gpus_per_task or None,
        "mem": options.memory,
        "time": options.time_limit,
        "output": f"{options.job_name}-%j.log",
    }
    directives = [f"#SBATCH --{name}={value}" for name, value in wanted.items() if value is not None]
    directives += ["#SBATCH --open-mode=append", "#SBATCH --requeue"]
    servers = ["--ps", str(options.ps)] if options.ps else []
    command = [options.labkit, "cluster", "slurm-task", *servers]
    return SCRIPT.format(
        directives="\n".join(directives),
        signal_seconds=options.signal_seconds,
        max_restarts=options.max_restarts,
        # srun doesn't take this over from sbatch (since Slurm 22.05).
        srun=f" --cpus-per-task={options.cpus_per_task}" if options.cpus_per_task else "",
        command=f'{shlex.join(command)} --ending "$ending" -- ' + _wrapped(train_arguments(config)),
    )


def _wrapped(arguments: list[str]) -> str:
    """Return the training for a shell, with each flag and its value on a line of its own."""
    lines = [shlex.quote(arguments[0])]
    for argument in arguments[1:]:
        if argument.startswith("--"):
            lines.append(shlex.quote(argument))
        else:
            lines[-1] += " " + shlex.quote(argument)
    return " \\\n        ".join(lines)
