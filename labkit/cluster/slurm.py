"""Slurm: a task's place in the cluster, out of the environment of its job step.

TensorFlow's own ``SlurmClusterResolver`` asks ``nvidia-smi`` and so fails on nodes without GPUs; what it
needs stands in the environment of every job step. Names as in ``man srun``, section OUTPUT ENVIRONMENT.
"""

import re
import socket
import subprocess
from collections.abc import Callable, Mapping

from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["expand_hostlist", "listening_address", "node_address", "task_from_slurm"]

# Below the ports that Linux hands out by itself (32768 and up), in one block of 20 for each step of a job.
FIRST_PORT, PORT_BLOCKS, PORTS_PER_BLOCK = 20_000, 600, 20
# Near 600 / golden ratio and prime to 600: jobs with near numbers get blocks far from each other, so that the
# steps of one don't run into those of the next (for 20 jobs and 20 steps on, none does).
BLOCKS_BETWEEN_JOBS = 371


def task_from_slurm(
    environment: Mapping[str, str], *, ps: int = 0, address_of: Callable[[str], str] | None = None
) -> ClusterTask:
    """Return the place of a process that ``srun`` started.

    Without parameter servers all tasks are workers. With ``ps`` of them rank 0 is the chief, the last ``ps``
    ranks are the parameter servers, and those between are workers. Ports are made from the numbers of job
    and step, so that two of them on one host don't meet, and count up over the tasks that share an address.

    Args:
        environment: of the job step. Tasks have to be placed in blocks (``srun --distribution=block``).
        address_of: host name or address of a node; ``node_address`` unless given. A step on one node needs
            none: its tasks meet on 127.0.0.1.

    Raises InputError outside of a job step, where the placement isn't in blocks, and for more tasks on one
    host than there are ports in a step's block.
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
            f"rank {rank} runs on {own}, in blocks it would be on {placed[rank]}; "
            "start the step with srun --distribution=block"
        )
    look_up = (lambda _: "127.0.0.1") if len(nodes) == 1 else (address_of or node_address)
    hosts = {node: look_up(node) for node in nodes}
    job = _number(environment, "SLURM_JOB_ID")
    step = _number(environment, "SLURM_STEP_ID") if environment.get("SLURM_STEP_ID") else 0
    addresses = _with_ports([hosts[node] for node in placed], job, step)
    if not ps:
        return ClusterTask({"worker": addresses}, "worker", rank)
    if tasks < ps + 2:
        raise InputError(
            f"--ps is {ps} of {counted(tasks, 'task')}; a chief and a worker are needed besides them"
        )
    jobs = {"chief": addresses[:1], "worker": addresses[1:-ps], "ps": addresses[-ps:]}
    name, first = ("chief", 0) if rank == 0 else ("ps", tasks - ps) if rank >= tasks - ps else ("worker", 1)
    return ClusterTask(jobs, name, rank - first)


def expand_hostlist(text: str) -> list[str]:
    """Return the names in Slurm's short form: ``n[0-1,03]-ib,x`` is n0-ib, n1-ib, n03-ib, x."""
    if not re.fullmatch(r"(?:[^\[\],\s]|\[[\d,-]+\]|,(?!,))+", text):
        raise InputError(f"{text[:200]!r} is no list of Slurm nodes; expected a form such as n[0-3,7]")
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
            raise InputError(f"[{text[:200]}] is no range of Slurm nodes; expected a form such as [0-3,7]")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def node_address(node: str) -> str:
    """Return a node's name where it resolves, else the address that Slurm itself uses for it.

    Raises InputError where there is neither.
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
            f"node {node} doesn't resolve, and scontrol can't tell its address: {error}"
        ) from None
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    if not found or found[1] == node:
        raise InputError(f"node {node} doesn't resolve, and Slurm has no other address (NodeAddr) for it")
    return found[1]


def listening_address(task: ClusterTask) -> str:
    """Return this machine's address on the way to the other tasks: the only one to listen on."""
    own = split_address(task.address)[0]
    others = [split_address(address) for address in task.addresses().values()]
    there = next(((host, port) for host, port in others if host != own), None)
    if there is None:
        return own
    family, kind, _, _, target = socket.getaddrinfo(*there, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # of a datagram socket: chooses the route, sends nothing
        return probe.getsockname()[0]


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InputError(f"{name} is not set; start this inside of a Slurm job with srun")
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
            f"{most} tasks share a host; allowed: at most {PORTS_PER_BLOCK}; ask for fewer tasks on a node"
        )
    first = FIRST_PORT + (job * BLOCKS_BETWEEN_JOBS + step) % PORT_BLOCKS * PORTS_PER_BLOCK
    return tuple(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for index, host in enumerate(hosts)
        for port in [first + hosts[:index].count(host)]
    )
