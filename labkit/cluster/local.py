"""The tasks and addresses of a cluster on this machine; ``labkit.cluster.local_run`` runs them."""

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from labkit.distributed.task import ClusterTask
from labkit.errors import InputError


@dataclass(frozen=True)
class LocalCluster:
    """Synchronous workers, or with parameter servers a chief that coordinates asynchronous workers.

    Raises InputError for impossible numbers.
    """

    workers: int
    ps: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"--workers is {self.workers}; allowed: 1 or more")
        if self.ps < 0:
            raise InputError(f"--ps is {self.ps}; allowed: 0 (synchronous) or more (asynchronous)")

    @property
    def asynchronous(self) -> bool:
        return self.ps > 0

    @property
    def label(self) -> str:
        """Return a short form for names of runs, such as ``2workers-1ps``."""
        return f"{self.workers}workers" + (f"-{self.ps}ps" if self.ps else "")

    def launcher(self, *flags: str) -> list[str]:
        """Return the words of ``labkit`` that start it, in front of ``train``. ``flags``: further ones."""
        servers = ["--ps", str(self.ps)] if self.ps else []
        return ["cluster", "local", "--workers", str(self.workers), *servers, *flags, "--"]

    @property
    def chief(self) -> str:
        """Return the name of the task that writes the run."""
        return "chief:0" if self.asynchronous else "worker:0"

    @property
    def names(self) -> list[str]:
        """Return the names of the tasks."""
        counts = {"chief": int(self.asynchronous), "worker": self.workers, "ps": self.ps}
        return [f"{job}:{index}" for job, count in counts.items() for index in range(count)]

    def tasks(self, host: str) -> dict[str, ClusterTask]:
        """Return the tasks by name, with free ports of ``host``. Raises InputError for another machine's."""
        shown = f"[{host}]" if ":" in host else host
        ports = free_ports(host, len(self.names))
        return self.tasks_at([f"{shown}:{port}" for port in ports])

    def tasks_at(self, addresses: Iterable[str]) -> dict[str, ClusterTask]:
        """Return the tasks by name; ``addresses``: of each, in the order of ``names``."""
        jobs: dict[str, tuple[str, ...]] = {}
        for name, address in zip(self.names, addresses, strict=True):
            job = name.partition(":")[0]
            jobs[job] = (*jobs.get(job, ()), address)
        tasks = [ClusterTask(jobs, job, index) for job in jobs for index in range(len(jobs[job]))]
        return {task.name: task for task in tasks}


def own_host(bind: str) -> str:
    """Return the address at which this machine reaches servers that listen on ``bind``."""
    return "127.0.0.1" if bind in ("0.0.0.0", "::") else bind


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on. Raises InputError for a host that is not this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as held:  # all held at once, or one port could be returned twice
        sockets = [held.enter_context(socket.socket(family, socket.SOCK_STREAM)) for _ in range(count)]
        try:
            for each in sockets:
                each.bind((host, 0))
        except (OSError, UnicodeError) as error:  # UnicodeError: not a possible host name
            raise InputError(
                f"no port of {host!r} can be used ({error}); allowed: an address of this machine"
            ) from None
        return [each.getsockname()[1] for each in sockets]
