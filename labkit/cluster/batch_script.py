"""Write the Slurm batch script of a run, which saves before the time limit and requeues itself."""

import re
import shlex
from dataclasses import dataclass

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.config import Config
from labkit.errors import InputError

# Slurm may send the signal this much earlier than asked for (man sbatch, --signal).
SIGNAL_EARLY_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What to request from Slurm. The names are those of sbatch's flags; None leaves the choice to Slurm.

    Args:
        nodes: Nodes to train on.
        tasks_per_node: Processes on each node.
        time_limit: Time after which the job saves and requeues itself: minutes, MM:SS, HH:MM:SS, D-HH,
            D-HH:MM or D-HH:MM:SS.
        signal_seconds: Seconds before the time limit at which the tasks save and stop.
        job_name: Name in the queue.
        partition: Partition to queue in. Default: none.
        account: Account to charge. Default: none.
        cpus_per_task: Cores for each process. Default: none.
        gpus_per_task: GPUs for each process.
        memory: Memory for each node, such as 16G. Default: none.
        ps: How many of the processes are parameter servers. 0 trains synchronously.
        max_restarts: Restarts after the loss of a process. Requeues at the time limit don't count.
        labkit: Path of the command on all nodes.

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
    """Return a Slurm time limit in seconds."""
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
# Written by `labkit cluster slurm`. Submit it from a folder that all nodes share: sbatch FILE
{directives}
# The signal goes to the tasks, not to this script: they save a checkpoint and exit with 143.
#SBATCH --signal=TERM@{signal_seconds}

job=labkit-$SLURM_JOB_ID
exit_status=$job.${{SLURM_RESTART_COUNT:-0}}
echo "labkit: job $SLURM_JOB_ID, start $((${{SLURM_RESTART_COUNT:-0}} + 1)), on $SLURM_JOB_NODELIST"

# block: TF_CONFIG is derived from the ranks. srun does not kill the other tasks when one is lost: they
# notice it, print which one, and exit with 75.
srun --distribution=block --kill-on-bad-exit=0{srun} \\
    {command}
code=$?

# srun exits with the highest code of all tasks. If one task failed (1, 2), the others lost it (75). A task
# therefore records its failure, or the step at which it stopped, in a file.
if [[ -s $exit_status.failed ]]; then code=$(<"$exit_status.failed"); fi
step=0 reached=0
if [[ -s $exit_status.step ]]; then step=$(<"$exit_status.step"); fi
if [[ -s $job.step ]]; then reached=$(<"$job.step"); fi
rm -f "$exit_status.failed" "$exit_status.step"

case $code in
0) rm -f "$job.losses" "$job.step" ;;
1 | 2 | 126 | 127 | 130) echo "labkit: exit code $code; not restarted, because it would fail again" ;;
*)
    # SIGTERM, or another signal that --signal or the site's Slurm names: SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP.
    case $code in 143 | 138 | 140 | 152 | 129) stopped=1 ;; *) stopped=0 ;; esac
    if ((stopped && step > reached)); then
        echo "$step" >"$job.step"
        echo "labkit: stopped after a checkpoint; requeued"
        scontrol requeue "$SLURM_JOB_ID"
        exit $code
    fi
    why="lost a task (exit code $code)"
    if ((stopped)); then why="stopped without a new step"; fi
    echo "$code" >>"$job.losses"
    if (($(wc -l <"$job.losses") > {max_restarts})); then
        echo "labkit: $why; gave up, --max-restarts is {max_restarts}"
    else
        echo "labkit: $why; requeued"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit $code
"""


def render_batch_script(config: Config, options: BatchOptions) -> str:
    """Return a script for ``sbatch`` that trains ``config`` and requeues itself until the run is finished.

    The tasks save and stop before the time limit, and stop when one of them is lost. In both cases the job
    is requeued and continues from the last checkpoint. A failed training or bad input in any task ends the
    job. Raises InputError if the tasks can't train ``config`` together.
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
        # Since Slurm 22.05 srun does not inherit this from sbatch.
        srun=f" --cpus-per-task={options.cpus_per_task}" if options.cpus_per_task else "",
        command=f'{shlex.join(command)} --exit-status "$exit_status" -- ' + _wrapped(train_arguments(config)),
    )


def _wrapped(arguments: list[str]) -> str:
    """Return the training's command for a shell, one flag a line."""
    lines = [shlex.quote(arguments[0])]
    for argument in arguments[1:]:
        if argument.startswith("--"):
            lines.append(shlex.quote(argument))
        else:
            lines[-1] += " " + shlex.quote(argument)
    return " \\\n        ".join(lines)
