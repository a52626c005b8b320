"""A process's role in a cluster. Does not import TensorFlow."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.errors import InputError
from labkit.plurals import printable

__all__ = ["JOBS", "ClusterTask", "is_loopback", "split_address", "without_scheme"]

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
