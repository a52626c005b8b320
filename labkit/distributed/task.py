"""A process's role in a cluster: from ``TF_CONFIG``, or from the flags of the 2017 program.

``TF_CONFIG`` is the environment variable in which launchers describe the cluster to a TensorFlow process:
``{"cluster": {"worker": ["host:port", ...], "ps": [...]}, "task": {"type": "worker", "index": 0}}``
(https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable).
This module does not import TensorFlow.
"""

import ipaddress
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from labkit.config import DistributionConfig
from labkit.errors import InputError
from labkit.plurals import printable

JOBS = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True)
class ClusterTask:
    """One process of a cluster, and the addresses of all processes.

    ``jobs``: for each job the addresses (``host:port``) of its tasks, by index. ``job_name`` and
    ``task_index``: which of them this process is.

    Raises InputError, on construction, for a task outside of the cluster and for an invalid address.
    """

    jobs: Mapping[str, tuple[str, ...]]
    job_name: str
    task_index: int

    def __post_init__(self) -> None:
        unknown = sorted(set(self.jobs) - set(JOBS))
        if unknown:
            raise InputError(f"the cluster has a job {unknown[0][:200]!r}; allowed: {', '.join(JOBS)}")
        addresses = [address for job in self.jobs.values() for address in job]
        for address in addresses:
            split_address(address)
        twice = next((address for address in addresses if addresses.count(address) > 1), None)
        if twice:
            raise InputError(f"the cluster names {twice} twice; every task needs its own address")
        if len(self.jobs.get("chief", ())) > 1:
            raise InputError(f"the cluster has {len(self.jobs['chief'])} chiefs; allowed: one or none")
        if self.job_name == "evaluator":
            return
        tasks = len(self.jobs.get(self.job_name, ()))
        if not 0 <= self.task_index < tasks:
            known = [
                f"{job}:0 to {len(at) - 1}" if len(at) > 1 else f"{job}:0"
                for job, at in self.jobs.items()
                if at
            ]
            raise InputError(
                f"this task is {printable(self.name[:200])}, but the cluster has {tasks or 'none'} of job "
                f"{self.job_name[:200]!r}; allowed: {', '.join(known) or 'none, it is empty'}"
            )

    @property
    def name(self) -> str:
        """Return ``job:index``."""
        return f"{self.job_name}:{self.task_index}"

    @property
    def address(self) -> str:
        return self.jobs[self.job_name][self.task_index]

    @property
    def port(self) -> int:
        return split_address(self.address)[1]

    def addresses(self, *jobs: str) -> dict[str, str]:
        """Return the address of every task of ``jobs`` (default: all jobs), by name."""
        return {
            f"{job}:{index}": address
            for job in JOBS
            if not jobs or job in jobs
            for index, address in enumerate(self.jobs.get(job, ()))
        }

    def count(self, job: str) -> int:
        return len(self.jobs.get(job, ()))

    @property
    def asynchronous_by_default(self) -> bool:
        """Return whether there are parameter servers; their workers don't wait for each other."""
        return self.count("ps") > 0

    def only(self, *jobs: str) -> "ClusterTask":
        """Return the same task of a cluster that has no other jobs."""
        kept = {job: self.jobs[job] for job in jobs if self.jobs.get(job)}
        return ClusterTask(kept, self.job_name, self.task_index)

    # ---- synchronous training: every task trains, and the first one writes the run

    @property
    def num_workers(self) -> int:
        """Return the number of synchronous workers, the chief included."""
        return self.count("chief") + self.count("worker")

    @property
    def worker_number(self) -> int:
        """Return this process's index among the synchronous workers."""
        return self.task_index + (self.count("chief") if self.job_name == "worker" else 0)

    @property
    def is_chief(self) -> bool:
        """Return whether this process writes the run."""
        return self.job_name in ("chief", "worker") and self.worker_number == 0


def is_loopback(host: str) -> bool:
    """Return whether ``host`` can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def without_scheme(address: str) -> str:
    """Return ``address`` without ``grpc://``, with which TensorFlow's examples write it."""
    return address[len("grpc://") :] if address.lower().startswith("grpc://") else address


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``. Raises InputError for anything else."""
    host, colon, port = address.rpartition(":")
    is_host = host.isprintable() and "/" not in host and not any(map(str.isspace, host))
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not (colon and host and is_host and is_port):
        raise InputError(
            f"{address[:200]!r} is not the address of a task; allowed: host:port, such as 127.0.0.1:2222"
        )
    return host.strip("[]"), int(port)


# ---- where the description comes from

VARIABLE = "TF_CONFIG"
_WAY_OUT = 'add "cluster": {"worker": ["host:port", "host:port"]}, or unset it to train in one process'


def make_tf_config(task: ClusterTask) -> str:
    """Return the value of ``TF_CONFIG`` for one task. Inverse of ``parse_tf_config``."""
    cluster = {job: list(addresses) for job, addresses in task.jobs.items() if addresses}
    return json.dumps({"cluster": cluster, "task": {"type": task.job_name, "index": task.task_index}})


def parse_tf_config(text: str) -> ClusterTask | None:
    """Return the task that ``TF_CONFIG`` describes; None if it describes a single process.

    ``master``, TensorFlow 1's name of the chief, is read as ``chief``. Raises InputError for invalid input
    and for a task that isn't in the cluster.
    """
    try:
        value = json.loads(text)
        cluster, task = value.get("cluster") or {}, value.get("task") or {}
        jobs = {
            ("chief" if job == "master" else job): tuple(_addresses(job, given))
            for job, given in cluster.items()
        }
        name, index = task.get("type", "worker"), _index(task.get("index", 0))
        if not isinstance(name, str):
            raise TypeError("the task's type is not a string")
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{VARIABLE} is {text[:200]!r}; allowed: a JSON object such as "
            '{"cluster": {"worker": ["host:port", "host:port"]}, "task": {"type": "worker", "index": 0}}'
        ) from None
    jobs = {job: addresses for job, addresses in jobs.items() if addresses}
    trained_by = sum(len(addresses) for job, addresses in jobs.items() if job != "evaluator")
    if not task and trained_by < 2:
        return None  # one process: nothing to distribute over
    if not jobs and name != "evaluator":
        raise InputError(
            f"{VARIABLE} names the task {printable(name[:200])}:{index}, but no cluster; {_WAY_OUT}"
        )
    described = ClusterTask(jobs, "chief" if name == "master" else name, index)
    if trained_by < 2 and name != "evaluator":
        return None
    if not task:
        raise InputError(
            f"{VARIABLE} names {trained_by} tasks, but not which of them this is; add "
            '"task": {"type": "worker", "index": 0}, with each task\'s own index'
        )
    return described


def _index(given: Any) -> int:
    if isinstance(given, str):
        return int(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError("the task's index is not an integer")
    return given


def _addresses(job: str, given: Any) -> list[str]:
    # A mapping from index to address is TensorFlow's sparse cluster, which labkit does not support.
    if isinstance(given, Mapping | str):
        raise InputError(
            f"{VARIABLE} names the tasks of job {job[:200]!r} as {repr(given)[:200]}; "
            "allowed: a list of host:port"
        )
    return [without_scheme(str(address)) for address in given]


def task_from_hosts(config: DistributionConfig) -> ClusterTask | None:
    """Return the task that ``--ps-hosts``, ``--worker-hosts``, ``--job-name`` and ``--task-index`` describe.

    As in the 2017 program the first worker is the chief. In synchronous training it trains like the others.
    With parameter servers and without ``--sync`` it is the coordinator that TensorFlow 2 needs, which does
    not train: worker 1 of the flags becomes worker 0 of the cluster, and so on.

    Raises InputError for an incomplete description.
    """
    given = {
        "--worker-hosts": config.worker_hosts,
        "--ps-hosts": config.ps_hosts,
        "--job-name": config.job_name,
        "--task-index": config.task_index,
    }
    if not any(value is not None for value in given.values()):
        return None
    missing = [flag for flag in ("--worker-hosts", "--job-name", "--task-index") if given[flag] is None]
    if missing:
        raise InputError(
            f"{missing[0]} is missing; a cluster needs --worker-hosts, --job-name and --task-index together "
            "(and --ps-hosts for asynchronous training)"
        )
    workers, servers = _listed(config.worker_hosts), _listed(config.ps_hosts)
    job, index = config.job_name, config.task_index
    assert job is not None
    assert index is not None
    if config.sync or not servers:
        if job == "ps" and config.sync:
            raise InputError("--job-name is 'ps' with --sync; synchronous training has no parameter servers")
        return ClusterTask({"worker": workers}, job, index)
    if len(workers) < 2:
        raise InputError(
            f"--worker-hosts names {len(workers)} worker; asynchronous training needs at least 2, of which "
            "the first coordinates and doesn't train (or use --sync)"
        )
    if job == "worker":
        job, index = ("chief", 0) if index == 0 else ("worker", index - 1)
    return ClusterTask({"chief": workers[:1], "worker": workers[1:], "ps": servers}, job, index)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(without_scheme(part.strip()) for part in (text or "").split(",") if part.strip())


def find_task(config: DistributionConfig, environment: Mapping[str, str]) -> ClusterTask | None:
    """Return this process's task from its flags, or else from ``TF_CONFIG``; None without a cluster.

    Synchronous training leaves parameter servers out; a process that is one gets its task, but has nothing
    to do. An evaluator gets its task, but is no part of the cluster of the others. Raises InputError for an
    unusable description, and for ``--sync`` with a ``TF_CONFIG`` without a cluster.
    """
    task = task_from_hosts(config)
    text = environment.get(VARIABLE, "").strip()
    if task is None and text:
        task = parse_tf_config(text)
        if task is None and config.sync and not json.loads(text).get("cluster"):
            raise InputError(
                f"--sync is given, but {VARIABLE} is {text[:200]!r}, without a cluster; {_WAY_OUT}"
            )
    if task is None:
        return None
    if task.job_name == "evaluator":
        return task
    if task.asynchronous_by_default and not config.sync:
        if not task.count("chief"):
            raise InputError(
                "the cluster has parameter servers but no chief; asynchronous training needs one: the "
                "coordinator, which doesn't train (or use --sync)"
            )
        if not task.count("worker"):
            raise InputError("the cluster has parameter servers but no worker; name at least one worker")
        return task.only("chief", "worker", "ps")
    if task.job_name not in ("chief", "worker"):
        return task
    return task.only("chief", "worker")


def bypass_proxy(task: ClusterTask, environment: MutableMapping[str, str]) -> None:
    """Let gRPC, which obeys ``https_proxy``, reach the tasks of the cluster without a proxy."""
    hosts = dict.fromkeys(split_address(address)[0] for address in task.addresses().values())
    named = environment.get("no_grpc_proxy") or environment.get("no_proxy", "")
    environment["no_grpc_proxy"] = ",".join(filter(None, [named, *hosts]))
