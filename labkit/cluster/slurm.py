"""Slurm: a process's task in the cluster, from the environment variables of its job step.

TensorFlow's own ``SlurmClusterResolver`` calls ``nvidia-smi`` and fails on nodes without GPUs. The variables
are described in ``man srun``, section OUTPUT ENVIRONMENT VARIABLES.
"""

import re
import socket
import subprocess
from collections.abc import Callable, Mapping

from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.plurals import counted

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
    if not ps:
        return ClusterTask({"worker": addresses}, "worker", rank)
    if tasks < ps + 2:
        raise InputError(
            f"--ps is {ps} of {tasks} tasks; allowed: at most {max(0, tasks - 2)}, for a chief and a worker"
        )
    jobs = {"chief": addresses[:1], "worker": addresses[1:-ps], "ps": addresses[-ps:]}
    name, first = ("chief", 0) if rank == 0 else ("ps", tasks - ps) if rank >= tasks - ps else ("worker", 1)
    return ClusterTask(jobs, name, rank - first)


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
