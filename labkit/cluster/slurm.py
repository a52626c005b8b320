"""Slurm: a run's batch script, which saves before the time limit and requeues itself, and the task of each
process, from the environment variables of its job step.

TensorFlow's own ``SlurmClusterResolver`` calls ``nvidia-smi`` and fails on nodes without GPUs. The variables
are described in ``man srun``, section OUTPUT ENVIRONMENT VARIABLES.
"""

import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from labkit.cluster.flags import check_replicas, train_arguments
from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.startup.child import EXIT_STATUS

# Below Linux's ephemeral ports (32768 and up); each step of a job uses one block of 20.
FIRST_PORT, PORT_BLOCKS, PORTS_PER_BLOCK = 20_000, 600, 20
# Close to 600 / golden ratio and coprime to 600: jobs with consecutive numbers get blocks far apart, so the
# steps of one job don't reach the blocks of the next (no collision within 20 jobs and 20 steps).
BLOCKS_BETWEEN_JOBS = 371


def task_from_slurm(
    environment: Mapping[str, str], *, ps: int = 0, address_of: Callable[[str], str] | None = None
) -> ClusterTask:
    """Return the task of a process that ``srun`` started.

    Without parameter servers all tasks are workers. With them rank 0 is the chief, the last ``ps`` ranks are
    the parameter servers, and those in between are workers. Ports are derived from the numbers of job and
    step, so that two steps on one host don't collide.

    Args:
        environment: of the job step. Its tasks must be placed in blocks (``srun --distribution=block``).
        ps: parameter servers.
        address_of: maps a node to its host name or address (default: ``node_address``). Tasks on a single
            node use 127.0.0.1 instead.

    Raises InputError outside of a job step, for another placement than in blocks, and for more than 20 tasks
    on one host.
    """
    nodes = expand_hostlist(_variable(environment, "SLURM_STEP_NODELIST"))
    counts = _tasks_per_node(_variable(environment, "SLURM_STEP_TASKS_PER_NODE"))
    rank, tasks = (_number(environment, name) for name in ("SLURM_PROCID", "SLURM_NTASKS"))
    if len(counts) != len(nodes) or sum(counts) != tasks:
        raise InputError(
            f"SLURM_NTASKS is {tasks}, but SLURM_STEP_TASKS_PER_NODE gives {counts} on "
            f"{counted(len(nodes), 'node')}; run labkit as the only program of its job step"
        )
    if rank >= tasks:
        raise InputError(f"SLURM_PROCID is {rank}, but SLURM_NTASKS is {tasks}; allowed: 0 to {tasks - 1}")
    placed = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    own = environment.get("SLURMD_NODENAME", placed[rank])
    if own != placed[rank]:
        raise InputError(
            f"rank {rank} runs on {own}; with placement in blocks it would run on {placed[rank]}; "
            "start the step with srun --distribution=block"
        )
    look_up = (lambda _: "127.0.0.1") if len(nodes) == 1 else (address_of or node_address)
    hosts = {node: look_up(node) for node in nodes}
    job = _number(environment, "SLURM_JOB_ID")
    step = _number(environment, "SLURM_STEP_ID") if environment.get("SLURM_STEP_ID") else 0
    addresses = _with_ports([hosts[node] for node in placed], job, step)
    if ps and tasks < ps + 2:
        raise InputError(
            f"--ps is {ps} of {tasks} tasks; allowed: at most {max(0, tasks - 2)}, for a chief and a worker"
        )
    cluster = LocalCluster(tasks - ps - 1 if ps else tasks, ps)
    return cluster.tasks_at(addresses)[cluster.names[rank]]


def expand_hostlist(text: str) -> list[str]:
    """Expand Slurm's short form: ``n[0-1,03]-ib,x`` becomes n0-ib, n1-ib, n03-ib, x."""
    if not re.fullmatch(r"(?:[^\[\],\s]|\[[\d,-]+\]|,(?!,))+", text):
        raise InputError(f"{text[:200]!r} is not a list of Slurm nodes such as n[0-3,7]")
    names = []
    for item in re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", text):
        expanded = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
            parts = _expand_ranges(ranges) if ranges else [literal]
            expanded = [name + part for name in expanded for part in parts]
        names += expanded
    return names


def _expand_ranges(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise InputError(f"[{text[:200]}] is not a range of Slurm nodes such as [0-3,7]")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def node_address(node: str) -> str:
    """Return the node's name if it resolves, else the address that Slurm itself uses (NodeAddr).

    Raises InputError if there is neither.
    """
    try:
        socket.getaddrinfo(node, None)
        return node
    except OSError:
        pass
    try:
        command = ["scontrol", "show", "node", "--oneliner", node]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"node {node} doesn't resolve, and scontrol did not return its address: {error}"
        ) from None
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    if not found or found[1] == node:
        raise InputError(f"node {node} doesn't resolve, and Slurm has no other address (NodeAddr) for it")
    return found[1]


def listening_address(task: ClusterTask) -> str:
    """Return the address of this machine on the route to the other tasks, which is the one to listen on."""
    own = split_address(task.address)[0]
    others = [split_address(address) for address in task.addresses().values()]
    there = next(((host, port) for host, port in others if host != own), None)
    if there is None:
        return own
    family, kind, _, _, target = socket.getaddrinfo(*there, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # for a datagram socket this chooses the route and sends nothing
        return probe.getsockname()[0]


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InputError(f"{name} is not set; run this inside of a Slurm job with srun")
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    value = _variable(environment, name)
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise InputError(f"{name} is {value[:200]!r}; expected a number, as Slurm sets it")
    return int(value)


def _tasks_per_node(text: str) -> list[int]:
    """Read ``2(x3),1``: two tasks on each of three nodes, one on the fourth."""
    groups = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    if not all(groups):
        raise InputError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; expected a form such as 2(x3),1")
    return [int(group[1]) for group in groups if group for _ in range(int(group[2] or 1))]


def _with_ports(hosts: list[str], job: int, step: int) -> tuple[str, ...]:
    most = max(map(hosts.count, hosts))
    if most > PORTS_PER_BLOCK:
        raise InputError(
            f"{most} tasks share a host; allowed: at most {PORTS_PER_BLOCK}; request fewer tasks per node"
        )
    first = FIRST_PORT + (job * BLOCKS_BETWEEN_JOBS + step) % PORT_BLOCKS * PORTS_PER_BLOCK
    return tuple(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for index, host in enumerate(hosts)
        for port in [first + hosts[:index].count(host)]
    )


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
1 | 2 | 126 | 127) echo "labkit: exit code $code; not restarted, because it would fail again" ;;
130) echo "labkit: stopped by SIGINT; not restarted; sbatch with this script goes on" ;;
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
    servers = ["--ps", str(options.ps)] if options.ps else []
    command = [options.labkit, "cluster", "slurm-task", *servers]
    command_text = f'{shlex.join(command)} --exit-status "$exit_status" -- ' + _wrapped(
        train_arguments(config)
    )
    return _script(options, command_text, nodes=options.nodes, log="%j")


def render_search_script(search: Sequence[str], options: BatchOptions) -> str:
    """Return a script for ``sbatch``: an array of jobs on one node each, which share a search.

    ``search``: a command of labkit with ``--join``. Each job saves before the time limit and requeues itself.
    """
    command = f'env {EXIT_STATUS}="$PWD/$exit_status" {shlex.quote(options.labkit)} {_wrapped([*search])}'
    return _script(options, command, array=f"1-{options.nodes}", nodes=1, log="%A_%a")


def _script(options: BatchOptions, command: str, *, nodes: int, log: str, array: str | None = None) -> str:
    wanted = {
        "job-name": options.job_name,
        "partition": options.partition,
        "account": options.account,
        "array": array,
        "nodes": nodes,
        "ntasks-per-node": options.tasks_per_node,
        "cpus-per-task": options.cpus_per_task,
        "gpus-per-task": options.gpus_per_task or None,
        "mem": options.memory,
        "time": options.time_limit,
        "output": f"{options.job_name}-{log}.log",
    }
    directives = [f"#SBATCH --{name}={value}" for name, value in wanted.items() if value is not None]
    directives += ["#SBATCH --open-mode=append", "#SBATCH --requeue"]
    return SCRIPT.format(
        directives="\n".join(directives),
        signal_seconds=options.signal_seconds,
        max_restarts=options.max_restarts,
        # Since Slurm 22.05 srun does not inherit this from sbatch.
        srun=f" --cpus-per-task={options.cpus_per_task}" if options.cpus_per_task else "",
        command=command,
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
